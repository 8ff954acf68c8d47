#!/bin/sh
# Makes a virtual environment with the first usable Python. Usage: venv.sh DIRECTORY [PYTHON]
set -eu
venv=$1
shift
usable='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'
bare=
for python in ${1:-python3 python3.13 python3.12 python3.11}; do
    if "$python" -c "$usable" >/dev/null 2>&1; then
        "$python" -c 'import sys; print(f"making '"$venv"' with Python {sys.version.split()[0]} ({sys.executable})")'
        "$python" -m venv "$venv" || { rm -rf "$venv"; exit 1; }
        exit 0
    fi
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then bare=$python; fi
done
if [ -n "$bare" ]; then
    echo "$bare is new enough but cannot make virtual environments (venv and ensurepip are missing)." >&2
    echo "Next: install them, on Debian and Ubuntu: apt-get install python3-venv" >&2
else
    echo "no Python found that is 3.11 or later (looked for: ${1:-python3 python3.13 python3.12 python3.11})." >&2
    echo "Next: install one, or name it: make PYTHON=/path/to/python3 ..." >&2
fi
exit 1
