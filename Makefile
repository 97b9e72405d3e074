# PYTHON=python3.10 chooses the interpreter; PYTEST="-k shrink" and QUICKSTART="--short" are passed on. MPI=1
# builds Horovod with MPI beside Gloo, GPU=1 takes MXNet for GPUs, and .venv keeps both.
.PHONY: help install quickstart lint test test-all coverage wheel clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

install: ## make .venv and install the pinned stack into it
	@python=$$(sh tools/setup/choose_python.sh "$(PYTHON)") && "$$python" tools/setup/install.py

quickstart: install ## install, then walk the whole way on a tiny BERT
	.venv/bin/python tools/quickstart.py $(QUICKSTART)

lint: install ## install, then check the form of the sources
	.venv/bin/ruff check
	.venv/bin/ruff format --check

test: install ## install, then run the tests that are not slow
	.venv/bin/python -m pytest -n auto --dist loadscope -m "not slow" $(PYTEST)

test-all: install ## install, then run all tests, and try the wheel
	.venv/bin/python -m pytest -n auto --dist loadscope --durations=25 $(PYTEST)
	.venv/bin/python tools/setup/try_wheel.py

coverage: install ## run the tests that are not slow, and list the lines that none of them runs
	.venv/bin/coverage run -m pytest -n auto --dist loadscope -m "not slow" $(PYTEST)
	.venv/bin/coverage combine --quiet
	.venv/bin/coverage report --show-missing --skip-covered

wheel: install ## make and try a wheel and a source distribution, in dist/
	.venv/bin/python tools/setup/try_wheel.py --output dist

clean: ## remove .venv and with it everything that was installed
	rm -rf .venv
