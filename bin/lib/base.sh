# The base image, debian:trixie-slim: pulled where a registry answers, else made from the machine's own Debian archive.
#
# Sourced by bin/test and bin/quickstart; run by itself it does just this part:  sudo bash bin/lib/base.sh [IMAGE]
# See docs/air-gapped.md.

base_up() {
    local image=${1:-debian:trixie-slim}
    docker image inspect "$image" >/dev/null 2>&1 && return 0
    step "$image pulled" -- timeout 120 docker pull -q "$image" 2>/dev/null && return 0
    say "  no registry gave $image: making it from the Debian archive"
    make_base "$image"
}

# debootstrap, without what no container needs (87 MB of package caches and lists, documentation, translations).
make_base() {
    local image=$1 mirror tree
    is_root || die "$image is not here, no registry gives it, and only root can make it" "sudo bash $root/bin/lib/base.sh"
    have apt-get || die "$image is not here and no registry gives it" \
        "on a machine that has it: docker save $image | gzip > base.tar.gz; here: docker load -i base.tar.gz"
    have debootstrap || apt_install debootstrap || die "debootstrap could not be installed"
    [ -r /usr/share/keyrings/debian-archive-keyring.gpg ] || apt_install debian-archive-keyring || die "no Debian keyring"
    # On Ubuntu its own archive holds no Debian: debootstrap's default is taken, or what the variable says.
    mirror=${AGENT_CONTAINER_DEBIAN_MIRROR:-}
    if [ -z "$mirror" ] && [ "$(os_release ID)" = debian ]; then mirror=$(debian_mirror); fi
    # Not /tmp: a tree of a system needs device files and room, and /tmp is often a nodev tmpfs.
    tree=$(mktemp -d /var/tmp/agent-container-base.XXXXXX)
    # shellcheck disable=SC2064
    trap "rm -rf --one-file-system '$tree'" EXIT
    step "debian trixie unpacked" -- debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
        trixie "$tree" ${mirror:+"$mirror"} || die "debootstrap failed" "another archive: AGENT_CONTAINER_DEBIAN_MIRROR=http://..."
    slim_base "$tree" "$mirror"
    step "$image made" -- import_base "$tree" "$image" || die "docker import failed"
    rm -rf --one-file-system "$tree"
    trap - EXIT
}

import_base() { tar --numeric-owner --xattrs -C "$1" -c . | docker import -c 'CMD ["bash"]' -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$2"; }

slim_base() {
    local tree=$1 mirror=$2 security
    # Packages fetched in a later layer are removed in that layer (what Debian's own images call docker-clean).
    cat >"$tree/etc/apt/apt.conf.d/docker-clean" <<'CLEAN'
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true"; };
APT::Update::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Acquire::Languages "none";
Acquire::GzipIndexes "true";
Apt::AutoRemove::SuggestsImportant "false";
CLEAN
    cat >"$tree/etc/dpkg/dpkg.cfg.d/slim" <<'SLIM'
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/lintian/*
SLIM
    # The security suite of the same archive family, where this machine uses one.
    security=$(debian_mirror -security)
    if [ -n "$security" ] && [ -n "$mirror" ] && [ "$(os_release ID)" = debian ]; then
        printf 'deb %s trixie-security main\n' "$security" >>"$tree/etc/apt/sources.list"
    fi
    find "$tree/usr/share/doc" -type f ! -name copyright -delete
    find "$tree/usr/share/doc" -type l -delete
    find "$tree/usr/share/doc" -mindepth 1 -type d -empty -delete
    rm -rf "$tree"/usr/share/{man,info,locale,lintian}/* "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/* "$tree"/var/log/*.log \
        "$tree"/var/log/apt/* "$tree"/tmp/* "$tree"/etc/machine-id "$tree"/etc/resolv.conf "$tree"/etc/hostname
    mkdir -p "$tree/var/cache/apt/archives/partial" "$tree/var/lib/apt/lists/partial"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -euo pipefail
    root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
    . "$root/bin/lib/common.sh"
    . "$root/bin/lib/engine.sh"
    engine_up
    base_up "$@"
    say "${1:-debian:trixie-slim} is here"
fi
