#!/bin/sh
# Install the project with the tested versions: sh infra/install.sh PYTHON REQUIREMENT...
# CI, `make` and both images install with these lines. torch goes first: TORCH_INDEX names
# the index of its CPU build; without it pip takes what its own index has. CONSTRAINTS
# names other versions than the tested ones. pip would compile on one core, so that all of
# them do it beside and after it, but for what is hardly ever imported: Python compiles
# that on its way. What is for other Pythons fails.
set -eu
python=$1
shift
constraints=${CONSTRAINTS:-constraints.txt}
rare='/tests/|/transformers/models/|/torch/(_inductor|testing)/|/(moto|faker|databricks|debugpy)/'
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
compile() { "$python" -m compileall -qq -j 0 -x "$rare" "$packages" || true; }

"$python" -m pip install --quiet --no-compile --constraint "$constraints" \
  ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$(grep '^torch==' "$constraints")"
compile &
"$python" -m pip install --quiet --no-compile --constraint "$constraints" "$@"
wait
compile
