# The checkout's .venv: Python 3.11 or newer, the packages of a hash lock, and the tool itself (editable).
# No index is named here: pip uses the one that the machine is set up for.

# Prints the first interpreter that is new enough; with `venv` as the argument it must also be able to make a venv.
find_python() {
    local name
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
        have "$name" || continue
        "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        [ "${1:-}" != venv ] || "$name" -c 'import ensurepip, venv' 2>/dev/null || continue
        printf '%s\n' "$name"
        return 0
    done
    return 1
}

# venv_up LOCK: idempotent; a stamp of the lock, pyproject.toml and the interpreter makes the second call free.
venv_up() {
    local lock=$1 python stamp
    if ! python=$(find_python venv); then
        find_python >/dev/null || have apt-get || die "Python 3.11 or newer is needed and was not found" \
            "install it, or name one: PYTHON=/path/to/python3.12 $0"
        if have apt-get && is_root; then
            apt_install python3 python3-venv || die "python3-venv could not be installed"
        elif have apt-get; then
            die "this Python cannot make a virtual environment (no ensurepip)" "sudo apt-get install python3-venv"
        fi
        python=$(find_python venv) || die "Python 3.11 or newer with venv is needed; here: $(python3 --version 2>&1 || true)" \
            "install it, or name one: PYTHON=/path/to/python3.12 $0"
    fi
    # Where the system has a bundle, it holds the CAs that this network needs; pip's own copy knows public ones only.
    if [ -z "${PIP_CERT:-}" ] && [ -r /etc/ssl/certs/ca-certificates.crt ]; then
        export PIP_CERT=/etc/ssl/certs/ca-certificates.crt
    fi
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
    stamp=$(cat "$root/$lock" "$root/pyproject.toml" <("$python" -V 2>&1) <(printf '%s\n' "$root") | cksum)
    if [ -x "$root/.venv/bin/python" ] && [ "$(cat "$root/.venv/stamp-$lock" 2>/dev/null || true)" = "$stamp" ]; then
        return 0
    fi
    if ! "$root/.venv/bin/python" -c 'import pip' 2>/dev/null; then
        step "virtual environment made" -- "$python" -m venv --clear "$root/.venv" || die "no virtual environment could be made"
    fi
    step "packages of $lock installed" -- "$root/.venv/bin/python" -m pip install -q --require-hashes -r "$root/$lock" ||
        die "the packages of $lock could not be installed" \
            "is the package index reachable? pip config list; behind a private CA see docs/private-ca.md"
    step "agent-container installed" -- "$root/.venv/bin/python" -m pip install -q --no-deps --no-build-isolation -e "$root" ||
        die "the checkout could not be installed into its virtual environment"
    printf '%s\n' "$stamp" >"$root/.venv/stamp-$lock"
}
