#!/usr/bin/env bash
# Installs what a driver needs, and nothing for training or rehearsing, into a folder of its own: its command lies in
# FOLDER/bin, Pulumi's engine in ~/.cache/bivouac/bin. install.sh FOLDER; needs Python 3.11 or later.
set -euo pipefail
folder=$(realpath -m "${1:?a folder for the packages}")
cd "$(dirname "$0")/../.."
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --require-hashes --no-deps --only-binary :all: -r requirements/closer.txt
"$folder/bin/python" -m pip install --quiet --no-build-isolation --no-deps -e .
"$folder/bin/python" -m infra.toolchain ensure pulumi
