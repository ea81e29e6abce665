# shellcheck shell=bash
# Sourced by every script here: strict mode, the repository's root, build prerequisites, one build environment.
#
# All scripts build into one target directory with the same C++ compiler through ccache, so that RocksDB, which takes
# most of the first build, is compiled once.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export CC="ccache clang" CXX="ccache clang++"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/onceward/target}"

RUST_MIN=1.90
SCRIPT=$(basename "$0")

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
warn() { printf '%s: %s\n' "$SCRIPT" "$*" >&2; }
die() {
  warn "$*"
  exit 1
}

# Prints the comment at the head of the calling script (from its second line to the first line that is none).
usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; }

have() { command -v "$1" >/dev/null 2>&1; }

have_libclang() {
  [ -n "${LIBCLANG_PATH:-}" ] || ldconfig -p 2>/dev/null | grep -q 'libclang[-.]' ||
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || compgen -G '/usr/lib*/libclang*.so*' >/dev/null
}

have_cxx() { have clang++ && printf '#include <vector>\nint main() {}\n' | clang++ -x c++ -o /dev/null - 2>/dev/null; }

have_faketime() { compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null; }

# require_packages PACKAGE…: installs them where this may and can be done, else says what to type.
require_packages() {
  local sudo=()
  if ! have apt-get; then
    die "please install (Debian's names): $*"
  elif [ "$(id -u)" -ne 0 ]; then
    if have sudo && sudo -n true 2>/dev/null; then sudo=(sudo); else die "please run: sudo apt-get install -y $*"; fi
  fi
  step "installing $*"
  "${sudo[@]}" apt-get update -q >/dev/null || warn "apt-get update failed; trying with the package lists at hand"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "$@" >/dev/null ||
    die "apt-get could not install: $*"
}

require_rust() {
  if ! have cargo && [ -x "$HOME/.cargo/bin/cargo" ]; then PATH="$HOME/.cargo/bin:$PATH"; fi
  if ! have cargo || ! have rustc; then
    die "Rust $RUST_MIN or newer is needed and is not installed from here. With rustup:
  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh
then open a new shell and run this again."
  fi
  local version
  version=$(rustc --version | awk '{ print $2 }')
  [ "$(printf '%s\n%s\n' "$RUST_MIN" "$version" | sort -V | head -n 1)" = "$RUST_MIN" ] ||
    die "rustc $version is too old: Rust $RUST_MIN or newer is needed. With rustup: rustup update stable"
}

# require_build_tools: what `cargo build` needs.
require_build_tools() {
  require_rust
  local missing=()
  have_cxx || missing+=(clang g++)
  have_libclang || missing+=(libclang-dev)
  have ccache || missing+=(ccache)
  have curl || missing+=(curl)
  [ "${#missing[@]}" -eq 0 ] || require_packages "${missing[@]}"
}

# require_component NAME: a part of the Rust toolchain, such as clippy.
require_component() {
  have "cargo-$1" && cargo "$1" --version >/dev/null 2>&1 && return
  have rustup || die "cargo $1 is missing: install it with your Rust toolchain"
  case $1 in fmt) rustup component add rustfmt ;; *) rustup component add "$1" ;; esac
}

# require_sdk: the Python packages of tests/sdk/requirements.txt, in an environment of their own beside the build. Sets
# ONCEWARD_SDK_PYTHON to its interpreter.
require_sdk() {
  local requirements="$ROOT/tests/sdk/requirements.txt" venv="$CARGO_TARGET_DIR/sdk"
  { have python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; } || require_packages python3 python3-venv
  if ! cmp -s "$requirements" "$venv/installed" || ! "$venv/bin/python" -c 'import svix, standardwebhooks' 2>/dev/null; then
    step "installing the packages of tests/sdk into $venv"
    rm -rf "$venv"
    mkdir -p "$CARGO_TARGET_DIR"
    python3 -m venv "$venv" || die "python3 -m venv failed"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$requirements" ||
      die "pip could not install tests/sdk/requirements.txt: it needs Python 3.11 or newer and a Python package index"
    cp "$requirements" "$venv/installed"
  fi
  export ONCEWARD_SDK_PYTHON="$venv/bin/python"
}

# There are two selections, and each always names the whole of it: cargo chooses the features of shared dependencies by what
# is built together, so that any other selection would build them once more.

# build_release: the programs that are released, and what measures and shows them, into $CARGO_TARGET_DIR/release.
build_release() {
  say_if_first onceward
  (cd "$ROOT" && cargo build --release --locked --workspace --exclude onceward-simulation \
    --bin onceward --bin onceward-bench --bin onceward-demo --bin onceward-payments)
}

# Tests, simulation and partition runs: with seeded faults and failpoints in the product, and a clock of tokio's that a
# simulation can stop. Neither is ever in a release.
TESTED=(--release --locked --workspace --features "onceward-server/faults,onceward-simulation/faults")

# build_suites: the partition suite with `onceward-faults`, and the simulation.
build_suites() {
  say_if_first onceward-faults
  (cd "$ROOT" && cargo build "${TESTED[@]}" --bin onceward-faults --bin partition --bin simulate)
}

say_if_first() {
  [ -x "$CARGO_TARGET_DIR/release/$1" ] || say "building (the first time takes a while: RocksDB is compiled from source)"
}
