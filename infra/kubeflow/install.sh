#!/bin/sh
# Make an environment that submits to Kubeflow: sh infra/kubeflow/install.sh FOLDER [EXTRAS]
# Kubeflow's SDK asks for versions of its own (constraints.txt beside this file); all other
# packages are those of constraints.txt. PYTHON names an interpreter; TORCH_INDEX as in
# infra/install.sh.
set -eu
folder=$1
extras=${2:-cluster,kubeflow}
test -x "$folder/bin/python" || "${PYTHON:-python3.11}" -m venv "$folder"
theirs=infra/kubeflow/constraints.txt
merged=$folder/constraints.txt
names=$(sed -n 's/^\([A-Za-z0-9._-]*\)==.*/\1/p' "$theirs" | paste -s -d '|')
grep -v -i -E "^($names)==" constraints.txt > "$merged"
cat "$theirs" >> "$merged"
CONSTRAINTS=$merged sh infra/install.sh "$folder/bin/python" --editable ".[$extras]"
