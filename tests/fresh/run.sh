#!/usr/bin/env bash
# A fresh machine: a Debian with nothing but python3 and git, in which the README's two commands must work.
#
#   sudo tests/fresh/run.sh [--release bookworm|trixie] [--keep] [-- COMMAND...]      default: bin/quickstart, then bin/test
#
# It is a newly debootstrapped tree in network, mount and pid namespaces of its own, with its own dockerd and data root inside: the
# engine of this host is neither used nor disturbed. It needs root, debootstrap, iproute2 and iptables here, some 12 GB, and the
# machine's package registries; not part of bin/test. It is left no process when it ends: its PID 1 takes all of them along.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
. "$root/bin/lib/common.sh"
. "$root/bin/lib/engine.sh"

release=bookworm keep= commands=()
while [ $# -gt 0 ]; do
    case $1 in
        --release) release=$2; shift 2 ;;
        --keep) keep=yes; shift ;;
        --) shift; commands=("$@"); break ;;
        *) die "unknown argument: $1" "see the head of $0" ;;
    esac
done
[ ${#commands[@]} -gt 0 ] || commands=(bash -c 'bin/quickstart && bin/test')

is_root || die "only root can make a machine" "sudo $0"
for tool in debootstrap ip iptables unshare; do have $tool || die "$tool is missing" "apt-get install debootstrap iproute2 iptables util-linux"; done

name=acfresh$$
machine=/var/tmp/agent-container-fresh-$release
subnet=198.51.100.128/30 here=198.51.100.129 there=198.51.100.130

# 1. The tree: made once with --keep, else anew every time.
if [ ! -x "$machine/usr/bin/git" ]; then
    rm -rf --one-file-system "$machine"
    mirror=$(debian_mirror)
    step "$release unpacked in $machine" -- debootstrap --variant=minbase --include=python3,git,ca-certificates \
        "$release" "$machine" "$mirror" || die "debootstrap failed"
fi

clean_up() {
    set +e
    ip netns del "$name" 2>/dev/null
    ip link del "$name" 2>/dev/null
    iptables -t nat -D POSTROUTING -s $subnet -j MASQUERADE 2>/dev/null
    iptables -D FORWARD -s $subnet -j ACCEPT 2>/dev/null
    iptables -D FORWARD -d $subnet -j ACCEPT 2>/dev/null
    [ -n "$keep" ] || rm -rf --one-file-system "$machine"
}
trap clean_up EXIT

# 2. A network namespace with one way out, so that its dockerd and its docker0 are alone in it.
ip netns add "$name"
ip link add "$name" type veth peer name eth0 netns "$name"
ip addr add $here/30 dev "$name"
ip link set "$name" up
ip -n "$name" addr add $there/30 dev eth0
ip -n "$name" link set eth0 up
ip -n "$name" link set lo up
ip -n "$name" route add default via $here
[ "$(cat /proc/sys/net/ipv4/ip_forward)" = 1 ] || echo 1 >/proc/sys/net/ipv4/ip_forward
iptables -t nat -A POSTROUTING -s $subnet -j MASQUERADE
iptables -I FORWARD -s $subnet -j ACCEPT
iptables -I FORWARD -d $subnet -j ACCEPT

# 3. What a machine gets from its network and its owner: resolver, CAs, and a clone of the project.
cp -L /etc/resolv.conf "$machine/etc/resolv.conf"
if [ -d /usr/local/share/ca-certificates ]; then
    cp -r /usr/local/share/ca-certificates/. "$machine/usr/local/share/ca-certificates/"
fi
mkdir -p "$machine/home/dev"
rm -rf "$machine/home/dev/agent-container"
git clone -q --no-hardlinks "$root" "$machine/home/dev/agent-container"

# 4. Inside. /dev is its own: the host's terminals and disks are not shown.
cat >"$machine/start" <<'BOOT'
#!/bin/bash
set -e
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /dev
while read -r node major minor; do
    mknod -m 666 "/dev/$node" c "$major" "$minor"
done <<<$'null 1 3\nzero 1 5\nfull 1 7\nrandom 1 8\nurandom 1 9\ntty 5 0'
mkdir /dev/pts /dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts /dev/pts
ln -s pts/ptmx /dev/ptmx
mount -t tmpfs tmpfs /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock
hostname fresh
update-ca-certificates >/dev/null 2>&1
cd /home/dev/agent-container

"$@"
BOOT
chmod +x "$machine/start"
say "fresh $release: ${commands[*]}"
started=$SECONDS status=0
# pivot_root and not chroot: in a chroot the namespace's root is still the host's, and there `docker exec` would end up.
cat >"$machine/enter" <<'ENTER'
set -e
mount --bind "$0" "$0"
cd "$0"
mkdir -p .host
pivot_root . .host
exec chroot . /bin/bash -c 'mount -t proc proc /proc && umount -l /.host && exec "$@"' bash /usr/bin/env -i HOME=/home/dev TERM=dumb LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /start "$@"
ENTER
ip netns exec "$name" unshare --mount --uts --ipc --pid --fork --kill-child --propagation private \
    bash -c "$(cat "$machine/enter")" "$machine" "${commands[@]}" </dev/null || status=$?
say "fresh $release: exit status $status after $((SECONDS - started)) s"
exit $status
