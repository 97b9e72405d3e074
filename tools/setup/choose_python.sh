#!/bin/sh
# Print the path of a CPython 3.10 or 3.11: the one named by the argument, or else the first suitable one of
# .venv's own, python3, python, python3.11 and python3.10. Environments are seen through to
# their base. Exit status 2, and one line that says why, where there is none.

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
chosen=${1:-}
wanted="CPython 3.10 or 3.11 is needed (MXNet 1.9.1 and its NumPy have no newer one)"
wayout="install one (python3.11 with its venv module and headers, say) and run make PYTHON=python3.11"

# Says "suitable PATH VERSION" or "unsuitable VERSION"; nothing if the command is missing or broken. Runs on
# Python 2 too.
probe() {
    "$1" -c '
import os, platform, sys
version = platform.python_version()
if (3, 10) <= sys.version_info[:2] <= (3, 11) and platform.python_implementation() == "CPython":
    base = os.path.join(sys.base_prefix, "bin", "python%d.%d" % sys.version_info[:2])
    print("suitable " + (base if os.path.exists(base) else sys.executable) + " " + version)
else:
    print("unsuitable " + platform.python_implementation() + " " + version)
' 2>/dev/null
}

path_of() { found=${1#suitable }; printf '%s\n' "${found% *}"; }

if [ -n "$chosen" ]; then
    found=$(probe "$chosen")
    case $found in
        suitable*) path_of "$found"; exit 0 ;;
        unsuitable*) echo "error: $chosen is ${found#unsuitable }, but $wanted: $wayout" >&2; exit 2 ;;
        *) echo "error: $chosen does not run, and $wanted: $wayout" >&2; exit 2 ;;
    esac
fi

passed_over=
for candidate in "$root/.venv/bin/python" python3 python python3.11 python3.10; do
    found=$(probe "$candidate")
    case $found in
        suitable*)
            if [ -n "$passed_over" ]; then
                echo "$passed_over, but $wanted: using $candidate ${found##* }" >&2
            fi
            path_of "$found"; exit 0 ;;
        unsuitable*) passed_over=${passed_over:-"$candidate is ${found#unsuitable }"} ;;
    esac
done
echo "error: ${passed_over:-"there is no python3 on the PATH"}, but $wanted: $wayout" >&2
exit 2
