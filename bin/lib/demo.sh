# The quickstart's project, settings and internet. Everything that it makes in Docker carries the label agent-container.demo and goes
# when the script ends; what a killed one left goes at the next start.

demo_scratch=$(mktemp -d)
chmod 755 "$demo_scratch"
demo_label=agent-container.demo

demo_clean() {
    local id
    for id in $(docker ps -aq --filter label=$demo_label 2>/dev/null); do docker rm -f -v "$id" >/dev/null 2>&1 || true; done
    for id in $(docker network ls -q --filter label=$demo_label 2>/dev/null); do docker network rm "$id" >/dev/null 2>&1 || true; done
}

demo_end() {
    local status=$?
    demo_clean
    rm -rf "$demo_scratch"
    exit $status
}
trap demo_end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A git repository with the example in it; one that an earlier call made is used as it is.
demo_project() {
    local project=$1
    if [ -e "$project/agent-container.yaml" ] && [ -d "$project/.git" ]; then return 0; fi
    [ ! -e "$project" ] || [ -z "$(ls -A "$project")" ] || die "$project exists and is not the demo's" "$0 ANOTHER-DIRECTORY"
    mkdir -p "$project"
    cp -R "$root/examples/demo/." "$project/"
    cat >>"$project/agent-container.yaml" <<SPEC
credentials:
  - demo                            # sealed by the quickstart; the sandbox gets a placeholder of it
SPEC
    git -C "$project" init -q -b main
    git -C "$project" add -A
    git -C "$project" -c user.name="agent-container demo" -c user.email=demo@example.invalid commit -q -m "A project to try agent-container on"
}

# The host names that the spec allows: the demo's DNS server must know them.
demo_names() {
    "$root/.venv/bin/python" -c '
import sys, yaml
spec = yaml.safe_load(open("agent-container.yaml"))
rules = (spec.get("egress") or {}).get("allow") or []
hosts = [rule if isinstance(rule, str) else rule["host"] for rule in rules]
hosts += [host for use in spec.get("credentials") or [] if isinstance(use, dict) for host in use.get("hosts") or []]
print(*sorted({host.replace("*", "www") for host in hosts}))'
}

# A secret that nobody has seen, bound to the demo's host. The web server knows its digest, and says whether a request carried it.
demo_credential() {
    local secret
    secret=demo-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    demo_secret_digest=$(printf '%s' "$secret" | sha256sum | cut -d' ' -f1)
    printf '%s' "$secret" | "$agc" credential set demo --kind generic --host demo.agent-container.test --path '/**' \
        --method GET --env DEMO_API_KEY
}

# Settings of these few commands alone: who answers for the internet, and whom to believe. The user's own file is not touched.
demo_settings() {
    demo_clean
    demo_network
    (cd "$project" && "$root/.venv/bin/python" "$root/bin/lib/double/certificates.py" "$demo_scratch" $(demo_names))
    cat >"$demo_scratch/config.yaml" <<CONFIG
resolvers: [$demo_dns]
upstream_ca: $demo_scratch/ca.pem
network:
  internal: true
  join: [agent-container-demo]
CONFIG
    chmod 644 "$demo_scratch"/*
}

# One of some small documentation ranges: another network on this host may hold the first.
demo_network() {
    local prefix
    for prefix in 203.0.113.224 203.0.113.208 198.51.100.224 198.51.100.208 192.0.2.224; do
        docker network create --internal --label $demo_label=1 --subnet "$prefix/28" agent-container-demo >/dev/null 2>&1 || continue
        demo_dns=${prefix%.*}.$((${prefix##*.} + 3))
        demo_web=${prefix%.*}.$((${prefix##*.} + 4))
        return 0
    done
    docker network create --internal --label $demo_label=1 --subnet 203.0.113.224/28 agent-container-demo ||
        die "no network could be made for the demo's servers" "docker network ls; docker network prune"
}

# What `--accept` takes, as `plan` shows it; empty when an earlier call of this script has said yes already.
demo_digest() {
    "$agc" --json plan --clone | "$root/.venv/bin/python" -c '
import json, sys
lines = json.load(sys.stdin)["result"]["approval"]
print(next((line.split()[1] for line in lines if line.startswith("digest ")), ""))'
}

# Both servers run from the agent's image, which has Python, with nothing that they do not need.
demo_internet() {
    local image
    image=$(docker images -q agent-container/agent | head -n 1)
    [ -n "$image" ] || die "no agent image was built" "$agc build"
    demo_server dns "$demo_dns" names.py "$demo_web" $(demo_names)
    demo_server web "$demo_web" web.py /demo/server.pem "$demo_secret_digest"
    say "  $demo_dns answers names, $demo_web answers HTTPS"
}

# demo_server NAME ADDRESS SCRIPT ARGUMENT...
demo_server() {
    local name=$1 address=$2 script=$3
    shift 3
    docker run -d --name "agent-container-demo-$name" --label $demo_label=1 --network agent-container-demo --ip "$address" \
        --user 65534:65534 --cap-drop ALL --security-opt no-new-privileges --read-only --pids-limit 64 --memory 128m \
        --sysctl net.ipv4.ip_unprivileged_port_start=0 \
        -v "$root/bin/lib/double:/double:ro" -v "$demo_scratch:/demo:ro" \
        --entrypoint /usr/bin/python3 "$image" -I "/double/$script" "$@" >/dev/null
}
