#!/bin/sh
# Install a private uv into a folder: `install_uv.sh .tools/uv` makes .tools/uv/bin/uv.
#
# A uv on PATH may have another version or not run at all, such as a pyenv shim without its Python.
set -eu
folder=$1
version=0.13.8

works() { [ "$("$1" --version 2>/dev/null | cut -d' ' -f2)" = "$version" ]; }

works "$folder/bin/uv" && exit 0
mkdir -p "$folder/bin"
for found in $(command -v uv 2>/dev/null || true) "$HOME/.local/bin/uv"; do
  if works "$found"; then
    cp -L "$found" "$folder/bin/uv" 2>/dev/null && works "$folder/bin/uv" && exit 0
  fi
done
# From PyPI, into a virtual environment; Debian's python3 may lack venv, but any pip can install into a folder.
for python in python3.12 python3 python; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || continue
  if "$python" -m venv "$folder" 2>/dev/null && "$folder/bin/python" -m pip install --quiet "uv==$version"; then
    works "$folder/bin/uv" && exit 0
  fi
  if "$python" -m pip install --quiet --target "$folder/lib" "uv==$version"; then
    cp "$folder/lib/bin/uv" "$folder/bin/uv" && works "$folder/bin/uv" && exit 0
  fi
done
if command -v curl >/dev/null; then
  curl -LsSf "https://astral.sh/uv/$version/install.sh" | env UV_INSTALL_DIR="$folder/bin" UV_NO_MODIFY_PATH=1 sh
  works "$folder/bin/uv" && exit 0
fi
echo "Cannot install uv $version: neither a Python 3.8+ with pip nor curl works here. See https://docs.astral.sh/uv/" >&2
exit 1
