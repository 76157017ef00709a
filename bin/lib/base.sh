# The base image, debian:trixie-slim: pulled where a registry answers, else made from the machine's own Debian archive.
#
# Sourced by bin/test and bin/quickstart after the virtual environment is there. `agent-container build` does the same for its users;
# what is added here is debootstrap itself, which only root can install. See docs/air-gapped.md.

base_up() {
    local image=debian:trixie-slim
    docker image inspect "$image" >/dev/null 2>&1 && return 0
    step "$image pulled" -- timeout 120 docker pull -q "$image" 2>/dev/null && return 0
    say "  no registry gave $image: making it from the Debian archive"
    is_root || die "$image is not here, no registry gives it, and only root can make it" "sudo $0"
    have apt-get || die "$image is not here and no registry gives it" \
        "on a machine that has it: docker save $image | gzip > base.tar.gz; here: docker load -i base.tar.gz"
    have debootstrap || apt_install debootstrap || die "debootstrap could not be installed"
    [ -r /usr/share/keyrings/debian-archive-keyring.gpg ] || apt_install debian-archive-keyring || die "no Debian keyring"
    step "$image made" -- "$root/.venv/bin/python" "$root/bin/lib/base.py" "$image" || die "$image could not be made"
}
