# PYTHON=python3.10 chooses the interpreter; PYTEST="-k shrink" and QUICKSTART="--short" are passed on. MPI=1 builds Horovod with
# MPI beside Gloo, and .venv keeps it.
.PHONY: help install quickstart test clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 20

install: ## make .venv and install the pinned stack into it
	@python=$$(sh tools/setup/choose_python.sh "$(PYTHON)") && "$$python" tools/setup/install.py

quickstart: install ## install, then walk the whole way on a tiny BERT
	.venv/bin/python tools/quickstart.py $(QUICKSTART)

test: install ## install, then run the tests
	.venv/bin/python -m pytest $(PYTEST)

clean: ## remove .venv and with it everything that was installed
	rm -rf .venv
