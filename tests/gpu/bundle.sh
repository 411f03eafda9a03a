#!/usr/bin/env bash
# Copies programs, and the shared libraries that they need, into a folder that runs on another
# machine of the same processor family, and packs it as FOLDER.tar.xz: bundle.sh FOLDER PROGRAM...
# Left out: the C and C++ run-time libraries and CUDA's, which a machine with the toolkit has.
set -euo pipefail
folder=$1
shift
for program in "$@"; do
  [[ -x $program ]] || { echo "gpu-bundle: $program was not built; is the CUDA Toolkit here?" >&2; exit 1; }
done
rm -rf -- "$folder"
mkdir -p "$folder/bin" "$folder/lib"
cp -- "$@" "$folder/bin"
strip "$folder"/bin/*
ldd "$@" | awk '/=> \// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|ld-linux[^/]*|libcu[a-zA-Z]*|libnv[a-zA-Z]*)\.so' |
  while read -r library; do cp -L -- "$library" "$folder/lib"; done
XZ_OPT='-2 -T0' tar -C "$(dirname "$folder")" -cJf "$folder.tar.xz" "$(basename "$folder")"
du -sh "$folder" "$folder.tar.xz"
