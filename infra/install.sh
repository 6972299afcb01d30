#!/bin/sh
# Install the project with the tested versions: sh infra/install.sh PYTHON REQUIREMENT...
# CI, `make` and both images install with these lines. torch goes first: TORCH_INDEX names
# the index of its CPU build; without it pip takes what its own index has. CONSTRAINTS
# names other versions than the tested ones. pip would compile on one core, so that all of
# them do it afterwards, but for packages' own tests; what is for other Pythons fails.
set -eu
python=$1
shift
constraints=${CONSTRAINTS:-constraints.txt}
"$python" -m pip install --quiet --no-compile --constraint "$constraints" \
  ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$(grep '^torch==' "$constraints")"
"$python" -m pip install --quiet --no-compile --constraint "$constraints" "$@"
"$python" -m compileall -qq -j 0 -x /tests/ \
  "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true
