# A Docker engine with compose v2 and buildx: used when one answers, brought up when this is root on Debian 12, 13 or Ubuntu.
#
# Sourced by bin/test and bin/quickstart; run by itself it does just this part:  sudo bash bin/lib/engine.sh
# Never starts a second dockerd in a network namespace (it would delete the first one's docker0), never stops one.

_dockerd_log=/var/log/agent-container-dockerd.log
_trixie_source=/etc/apt/sources.list.d/agent-container-trixie.sources
_trixie_pin=/etc/apt/preferences.d/agent-container-trixie

engine_answers() { have docker && timeout 30 docker info >/dev/null 2>&1; }

# Compose v2 or newer, and buildx: as plugins of the client.
plugins_answer() {
    local version
    version=$(docker compose version --short 2>/dev/null) || return 1
    case ${version#v} in 0.* | 1.*) return 1 ;; esac
    docker buildx version >/dev/null 2>&1
}

# engine_up: afterwards `docker info`, `docker compose` and `docker buildx` work, or the script has ended with what to type.
engine_up() {
    if engine_answers && plugins_answer; then return 0; fi
    is_root || explain_engine
    local id version
    id=$(os_release ID) version=$(os_release VERSION_ID)
    case $id:$version in
        debian:12*) engine_packages_debian12 ;;
        debian:13*) engine_packages docker.io docker-cli docker-compose docker-buildx ;;
        ubuntu:*) engine_packages docker.io docker-compose-v2 docker-buildx ;;
        *) have dockerd && have docker && plugins_answer || explain_engine ;;
    esac
    engine_answers || start_dockerd
    plugins_answer || die "docker compose (v2) and docker buildx do not answer" "docker compose version; docker buildx version"
}

# The end of the road for who is not root or not on a system that this script knows: what to type instead.
explain_engine() {
    local answer
    if have docker; then
        answer=$(timeout 30 docker info 2>&1 || true)
        case $answer in
            *"permission denied"*)
                die "Docker runs, but this user may not use it" "sudo usermod -aG docker $(id -un) && newgrp docker" \
                    "(who is in that group is as good as root on this machine)"
                ;;
        esac
        if engine_answers; then
            die "Docker answers, but docker compose v2 or docker buildx is missing" \
                "install both plugins: the packages docker-compose-plugin and docker-buildx-plugin of Docker's own repository," \
                "or your distribution's docker-compose (v2) and docker-buildx"
        fi
    fi
    case $(uname -s):$(os_release ID) in
        Darwin:*) die "no Docker answers" "install and start Docker Desktop, OrbStack or colima, then run this again" ;;
        *:debian | *:ubuntu)
            die "no Docker answers, and only root can set one up" "sudo bash $root/bin/lib/engine.sh" \
                "sudo usermod -aG docker $(id -un) && newgrp docker" "then run this again"
            ;;
        *:fedora | *:rhel | *:centos)
            die "no Docker answers" "sudo dnf install moby-engine docker-compose docker-buildx && sudo systemctl enable --now docker"
            ;;
        *:arch) die "no Docker answers" "sudo pacman -S docker docker-compose docker-buildx && sudo systemctl enable --now docker" ;;
        *) die "no Docker answers" "install Docker Engine 24 or newer with compose v2 and buildx, start it, then run this again" ;;
    esac
}

# The address of the archive that this machine's apt takes its own release from. apt itself is asked, so one-line and deb822
# sources, options and snippets all count.
debian_mirror() {
    local codename
    codename=$(os_release VERSION_CODENAME)
    apt-get indextargets --format '$(RELEASE) $(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        awk -v want="$codename" '($1 == want || $2 == want) && $3 == "main" { print $4; exit }'
}

# Packages that apt would have to add; starting services is left to start_dockerd, also where apt thinks that it could.
engine_packages() {
    local name missing=() policy=
    for name in "$@"; do
        dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ ! -d /run/systemd/system ] && [ ! -e /usr/sbin/policy-rc.d ]; then
        policy=/usr/sbin/policy-rc.d
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
    fi
    apt_install "${missing[@]}" iptables ca-certificates || { rm -f $policy; die "Docker's packages could not be installed"; }
    rm -f $policy
}

# Debian 12's own docker.io is 20.10 and has no compose v2. Debian 13's four packages run on Debian 12's containerd and runc.
engine_packages_debian12() {
    local old mirror
    old=$(dpkg-query -W -f '${Version}' docker.io 2>/dev/null || true)
    if [ -n "$old" ] && dpkg --compare-versions "$old" lt 24; then
        # docker-cli 26 breaks it, so it goes first; images and volumes stay. Not under someone's running containers.
        if engine_answers && [ -n "$(docker ps -q)" ]; then
            die "docker.io $old is too old (24 or newer is needed), and containers run on it" \
                "stop them (docker ps), then run this again: it is replaced by Debian 13's docker.io"
        fi
        step "docker.io $old removed" -- env DEBIAN_FRONTEND=noninteractive apt-get -q -y remove docker.io ||
            die "docker.io $old could not be removed"
    fi
    if ! dpkg-query -W docker.io docker-cli docker-compose docker-buildx >/dev/null 2>&1; then
        mirror=$(debian_mirror)
        if [ -z "$mirror" ]; then
            step "package lists read" -- apt-get -q -y update || die "apt cannot read its package lists"
            mirror=$(debian_mirror)
        fi
        [ -n "$mirror" ] || die "no Debian 12 archive in this machine's apt sources: cannot tell where Debian 13's lies" \
            "install Docker Engine 24 or newer with compose v2 and buildx by hand, then run this again"
        write_trixie_source "$mirror"
    fi
    # No `/trixie` here: that would take containerd along. The pin alone makes these four candidates.
    engine_packages docker.io docker-cli docker-compose docker-buildx
}

write_trixie_source() {
    local note="# Written by agent-container's bin/lib/engine.sh. Remove this file and its twin when the machine moves to Debian 13:"
    # Pin first: no moment in which all of Debian 13 is a candidate.
    cat >$_trixie_pin <<PIN
$note
#   $_trixie_source
Package: docker.io docker-cli docker-compose docker-buildx
Pin: release n=trixie
Pin-Priority: 500

Package: *
Pin: release n=trixie
Pin-Priority: 50
PIN
    cat >$_trixie_source <<SOURCE
$note
#   $_trixie_pin
Types: deb
URIs: $1
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCE
    _apt_fresh=
}

# The pid of a dockerd in this network namespace, if one lives.
dockerd_here() {
    local entry
    for entry in /proc/[0-9]*; do
        [ "$(cat "$entry/comm" 2>/dev/null || true)" = dockerd ] || continue
        [ "$(readlink "$entry/ns/net" 2>/dev/null || true)" = "$(readlink /proc/self/ns/net)" ] || continue
        printf '%s\n' "${entry#/proc/}"
        return 0
    done
    return 1
}

start_dockerd() {
    local other
    if other=$(dockerd_here); then
        wait_for_docker "$other" 60 && return 0
        die "a dockerd (pid $other) runs here but does not answer; a second one beside it would break its network" \
            "docker info; docker context ls; echo \$DOCKER_HOST"
    fi
    if [ -d /run/systemd/system ]; then
        step "docker service started" -- systemctl enable --now docker || die "systemd could not start docker" "journalctl -u docker -n 50"
        wait_for_docker "" 60 || die "docker was started but does not answer" "journalctl -u docker -n 50"
        return 0
    fi
    refuse_chroot
    have dockerd || die "docker's client is here but dockerd is not, and nothing answers at ${DOCKER_HOST:-its socket}"
    mount_cgroups
    launch_dockerd && return 0
    # Where the data root lies on an overlay or on a file system without the features that overlay needs.
    if grep -qE 'overlay|graphdriver|storage.driver' $_dockerd_log && launch_dockerd --storage-driver=vfs; then
        say "  note: overlay is not possible here; images are stored with the slow vfs driver"
        return 0
    fi
    tail -n 30 $_dockerd_log >&2
    die "dockerd did not start" "its log: $_dockerd_log"
}

# `docker exec` enters a container by its mount namespace, whose root under a chrooted dockerd is still that of the machine outside:
# what should run in a container would run there, as root (tried).
refuse_chroot() {
    local outside
    outside=$(nsenter --mount=/proc/self/ns/mnt stat -c %d:%i / 2>/dev/null) || return 0
    [ "$outside" = "$(stat -c %d:%i /)" ] || die "this is a chroot: programs for a container would end up outside of it" \
        "use a container or a virtual machine, or pivot_root instead of chroot"
}

# No init system here: in the background, in a session of its own, so that the end of this script does not end it.
launch_dockerd() {
    local pid_file=/var/run/docker.pid started=$SECONDS
    # No dockerd lives here (start_dockerd looked): a pid file is what a killed one left, and a number may since be another's.
    rm -f $pid_file
    # shellcheck disable=SC2016
    setsid nohup dockerd "$@" >$_dockerd_log 2>&1 </dev/null &
    wait_for_docker $! 60 || return 1
    say "  dockerd started ($((SECONDS - started)) s); its log: $_dockerd_log"
}

# wait_for_docker PID SECONDS: until it answers; gives up early when the process PID has ended.
wait_for_docker() {
    local end=$((SECONDS + $2))
    while [ $SECONDS -lt $end ]; do
        engine_answers && return 0
        [ -z "$1" ] || kill -0 "$1" 2>/dev/null || return 1
        sleep 0.3
    done
    return 1
}

# dockerd needs the cgroup hierarchies; in a chroot or a bare container nobody has mounted them.
mount_cgroups() {
    local controller
    mountpoint -q /sys || mount -t sysfs sysfs /sys || die "/sys is not mounted and cannot be: is this container privileged?"
    if ! mountpoint -q /sys/fs/cgroup; then
        if awk '!/^#/ && $2 != 0 { found = 1 } END { exit !found }' /proc/cgroups; then
            mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup || die "/sys/fs/cgroup cannot be mounted: is this container privileged?"
            for controller in $(awk '!/^#/ && $2 != 0 { print $1 }' /proc/cgroups); do
                mkdir -p "/sys/fs/cgroup/$controller"
                mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller" || rmdir "/sys/fs/cgroup/$controller"
            done
        else
            mount -t cgroup2 cgroup2 /sys/fs/cgroup || die "/sys/fs/cgroup cannot be mounted: is this container privileged?"
        fi
    fi
    # Version 2 lets a group that holds processes hand nothing on: move them aside, then hand the controllers to children.
    if [ -e /sys/fs/cgroup/cgroup.controllers ] && [ -z "$(cat /sys/fs/cgroup/cgroup.subtree_control)" ]; then
        mkdir -p /sys/fs/cgroup/init
        xargs -rn1 <"/sys/fs/cgroup/cgroup.procs" >/sys/fs/cgroup/init/cgroup.procs 2>/dev/null || true
        sed -e 's/ / +/g' -e 's/^/+/' </sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control || true
    fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -euo pipefail
    root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
    . "$root/bin/lib/common.sh"
    engine_up
    say "docker $(docker version --format '{{.Server.Version}}') answers, with compose $(docker compose version --short)"
fi
