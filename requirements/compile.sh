#!/bin/sh
# Makes the lock files: every version and hash for Python 3.11 to 3.13 in one file each, and no address of any index.
# Usage: requirements/compile.sh UV [--upgrade]. dev.lock comes first and constrains the others, so that they agree.
set -eu
cd "$(dirname "$0")/.."
uv=$1
shift
lock() {
    out=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --no-emit-index-url --no-emit-find-links --output-file "requirements/$out.lock" "$@"
}
lock dev "$@" --extra dev pyproject.toml requirements/build.in
lock run "$@" --constraint requirements/dev.lock --extra ed25519 --extra mpi pyproject.toml requirements/build.in
lock workflow "$@" --constraint requirements/dev.lock --extra ed25519 --extra mpi --extra workflow pyproject.toml requirements/build.in
lock plan "$@" --constraint requirements/dev.lock requirements/plan.in
lock s3 "$@" --constraint requirements/dev.lock requirements/s3.in
if grep -nE '://|^-|@ ' requirements/*.lock; then
    echo "lock files must not name any index, address or path" >&2
    exit 1
fi
