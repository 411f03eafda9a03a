#!/usr/bin/env bash
# A fresh Debian, as debootstrap makes one, with nothing but make, git and certificates: clones this
# tree's last commit there, types the README's two commands and its walk as a newcomer would, and
# prints how long each took. Before that, the same as a user who may install nothing.
#
#   tests/bare_machine.sh            with this machine's compiler cache, if there is one
#   tests/bare_machine.sh --cold     without: everything is compiled
#   tests/bare_machine.sh --needed   without any optional package, and so without a compiler cache
#   tests/bare_machine.sh --figures  beside that all figures: `make figures`
#
# Needs root and debootstrap; says so and exits with 77 where it has not got them. Variables: FIGURE
# (default dlora/fig10), SUITE (default bookworm), MIRROR (default: debootstrap's), WORK (a folder
# for the machine, kept; default: a temporary one), and those of make (JOBS, SERVELAB_WERROR).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tree=$PWD
figure=${FIGURE:-dlora/fig10}

skip() { printf 'bare machine: skipped: %s\n' "$*"; exit 77; }
fail() { printf 'bare machine: %s\n' "$*" >&2; exit 1; }

cache=yes setup_flags='' figures=no
for argument in "$@"; do
  case $argument in
    --cold) cache=no ;;
    --needed) cache=no setup_flags=--needed ;;
    --figures) figures=yes ;;
    *) fail "unknown argument '$argument' (known: --cold, --needed, --figures)" ;;
  esac
done

# What is mounted for the machine is gone with this process.
if [[ -z ${BARE_MACHINE_MOUNTS-} ]]; then
  [[ $(id -u) == 0 ]] || skip 'only root can make one'
  command -v debootstrap >/dev/null || skip 'no debootstrap (.ci/setup --bare installs it)'
  unshare --mount true 2>/dev/null || skip 'this machine allows no mounts'
  BARE_MACHINE_MOUNTS=1 exec unshare --mount --propagation private "$tree/tests/bare_machine.sh" "$@"
fi

work=${WORK:-$(mktemp -d)}
machine=$work/machine
log=$work/log
mkdir -p "$machine"
# Mounted folders are not the machine's: only what is on its own file system goes.
cleanup() {
  if [[ -z ${WORK-} ]]; then rm -rf --one-file-system "$work" 2>/dev/null || true; fi
}
trap cleanup EXIT

times=()
# timed WHAT COMMAND...: keeps the output, shows its end when the command fails
timed() {
  local what=$1 started=$SECONDS code=0
  shift
  printf 'bare machine: %s\n' "$what"
  "$@" >"$log" 2>&1 </dev/null || code=$?
  if ((code)); then
    tail -n 60 "$log"
    fail "'$what' ended with exit code $code"
  fi
  times+=("$(printf '%6d s  %s' $((SECONDS - started)) "$what")")
}

# on USER COMMAND: in the machine, in the clone, with the variables of `environment`
on() {
  local user=$1 home=/root
  if [[ $user != root ]]; then home=/home/$user; fi
  chroot --userspec="$user" "$machine" /usr/bin/env -i "HOME=$home" \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    "${environment[@]}" bash -euo pipefail -c "cd '$tree' 2>/dev/null || cd /; $2"
}

if [[ ! -e $machine/etc/debian_version ]]; then
  timed "debootstrap ${SUITE:-bookworm}" debootstrap --variant=minbase \
    --include=make,git,ca-certificates "${SUITE:-bookworm}" "$machine" ${MIRROR:+"$MIRROR"}
fi
mount -t proc proc "$machine/proc" 2>/dev/null || mount --rbind /proc "$machine/proc"
mount --rbind /dev "$machine/dev"
mount -t tmpfs tmpfs "$machine/tmp"
chmod 1777 "$machine/tmp"

# How this machine reaches the network goes along: names, certificates and proxies of its own.
cp -L /etc/resolv.conf /etc/hosts "$machine/etc/"
cp -L /usr/local/share/ca-certificates/*.crt "$machine/usr/local/share/ca-certificates/" \
  2>/dev/null || true
cp /etc/apt/apt.conf.d/*proxy* "$machine/etc/apt/apt.conf.d/" 2>/dev/null || true
environment=("SETUP_FLAGS=$setup_flags")
for name in JOBS SERVELAB_WERROR CI http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY \
            NO_PROXY $(compgen -e PIP_ || true); do
  if [[ -n ${!name-} ]]; then environment+=("$name=${!name}"); fi
done
on root 'update-ca-certificates' >/dev/null 2>&1 || fail 'no certificates'
if [[ $cache == yes ]] && command -v ccache >/dev/null; then
  folder=$(ccache --get-config cache_dir)
  mkdir -p "$folder" "$machine/ccache"
  mount --bind "$folder" "$machine/ccache"
  environment+=(CCACHE_DIR=/ccache)
fi

# The clone lies where this tree does, so that the compiler cache knows its files.
git bundle create --quiet "$machine/tmp/servelab.bundle" HEAD
clone='git clone --quiet -c advice.detachedHead=false /tmp/servelab.bundle'
fresh_clone="cd / && rm -rf '$tree' && mkdir -p '$(dirname "$tree")' && $clone '$tree'"

# A user who is not root, and has no sudo, is told every package that must be there.
missing=
for package in $(sed -n "/^needs='/,/^'/p" .ci/setup | awk -F '|' '$4 ~ /must/ { print $1 }'); do
  # shellcheck disable=SC2016
  on root "dpkg-query -W -f '\${Status}' '$package' 2>/dev/null" | grep -q 'ok installed' ||
    missing+=" $package"
done
if [[ -n $missing ]]; then
  on root "id newcomer >/dev/null 2>&1 || useradd --create-home newcomer"
  on root "$fresh_clone && chown -R newcomer '$tree'"
  if on newcomer "make 'figures/$figure'" >"$log" 2>&1; then
    fail 'a user who can install nothing was told nothing'
  fi
  for package in $missing; do
    grep -Fq "  $package " "$log" || { cat "$log"; fail "a user is not told of $package"; }
    grep 'apt-get install' "$log" | sed 's/$/ /' | grep -Fq " $package " ||
      { cat "$log"; fail "no command installs $package"; }
  done
  printf 'bare machine: a user without root is told what is missing:%s\n' "$missing" | fold -sw 100
fi

timed 'git clone' on root "$fresh_clone"
timed "make figures/$figure, set-up included" on root "make 'figures/$figure'"
on root "find results/$figure* -name '*.png' | grep -q ." || fail 'no picture'
timed 'a technique of one'\''s own, compared, packed and verified (README)' \
  on root "$clone /tmp/clean && tests/readme_example.sh . /tmp/clean"
sed -n '/^Over 3 seeds, shortest/,/\.$/p' "$log"
on root 'git clean -fdq baselines'
timed "make figures/$figure again" on root "make 'figures/$figure'"
if [[ $figures == yes ]]; then
  timed 'make figures, after that one' on root 'make figures'
  tail -n 18 "$log"
fi
timed 'make test' on root 'make test'
grep -E ' passed|tests passed|tests ran' "$log" || true

printf 'bare machine: %s, %s, %s jobs\n' "$(. "$machine/etc/os-release" && echo "$PRETTY_NAME")" \
  "${setup_flags:-set-up as it is}$([[ $cache == yes ]] && echo ', compiler cache')" "${JOBS:-$(nproc)}"
printf '%s\n' "${times[@]}"
