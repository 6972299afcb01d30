#!/bin/sh
# Install the project with the tested versions: sh infra/install.sh PYTHON REQUIREMENT...
# CI, `make` and both images install with these lines. torch goes first: TORCH_INDEX names
# the index of its CPU build; without it pip takes what its own index has.
set -eu
python=$1
shift
"$python" -m pip install --quiet --constraint constraints.txt \
  ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)"
"$python" -m pip install --quiet --constraint constraints.txt "$@"
