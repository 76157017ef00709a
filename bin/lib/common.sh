# What both README commands share: words on stderr, privileges, and running one step with its output kept for when it fails.
# Sourced by bin/*; expects `set -euo pipefail` and $root, the checkout's root.

say() { printf '%s\n' "$*" >&2; }

# die MESSAGE [HINT...]: what failed, then one line each of what to type.
die() {
    say "error: $1"
    shift
    local hint
    for hint in "$@"; do say "  $hint"; done
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

is_root() { [ "$(id -u)" -eq 0 ]; }

# step WORDS... -- COMMAND...: one line when done; the command's output only when it fails.
step() {
    local words="" log started=$SECONDS
    while [ "$1" != -- ]; do words="$words${words:+ }$1"; shift; done
    shift
    log=$(mktemp)
    if "$@" >"$log" 2>&1 </dev/null; then
        say "  $words ($((SECONDS - started)) s)"
        rm -f "$log"
        return 0
    fi
    say "  $words: FAILED after $((SECONDS - started)) s: $*"
    tail -n 60 "$log" >&2
    rm -f "$log"
    return 1
}

# One value of /etc/os-release, empty where there is none (macOS).
os_release() {
    [ -r /etc/os-release ] || return 0
    sed -n "s/^$1=//p" /etc/os-release | tr -d '"' | head -n 1
}

# apt_install PACKAGE...: root on a Debian-like system only; asks for fresh lists once in a run.
apt_install() {
    if [ -z "${_apt_fresh:-}" ]; then
        step "package lists read" -- apt-get -q -y update || return 1
        _apt_fresh=1
    fi
    step "installed: $*" -- env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "$@"
}
