# What a killed test run left in Docker: containers, networks and volumes that would hold names and address ranges.
#
# Only what can be told to be a test's is touched. The tests' own objects carry agent-container.test=<pid of the run>; the sandboxes
# that they open are told by where their rendered files lie, below pytest's temporary directory. What a run that lives still uses
# stays; in CI nobody else runs, so there all of it goes.

remove_test_leftovers() {
    local kind id owner session
    for kind in container network volume; do
        for id in $(labelled "$kind" agent-container.test); do
            owner=$(docker inspect --type "$kind" --format "$(test_label "$kind")" "$id" 2>/dev/null || true)
            case $owner in
                '' | *[!0-9]*) [ -n "${CI:-}" ] || continue ;;
                *) [ -n "${CI:-}" ] || ! kill -0 "$owner" 2>/dev/null || continue ;;
            esac
            remove_object "$kind" "$id"
        done
    done
    for session in $(test_sessions); do
        for kind in container network volume; do
            for id in $(labelled "$kind" "agent-container.session=$session"); do remove_object "$kind" "$id"; done
        done
    done
}

# Sessions whose rendered files lay in a temporary directory of pytest: in CI every one, else those whose files are gone.
test_sessions() {
    local id files session
    for id in $(labelled container agent-container.session); do
        files=$(docker inspect --format '{{range .Mounts}}{{if eq .Destination "/etc/agent-egress"}}{{.Source}}{{end}}{{end}}' "$id" 2>/dev/null || true)
        case $files in */pytest-of-*) ;; *) continue ;; esac
        [ -n "${CI:-}" ] || [ ! -e "$files" ] || continue
        session=$(docker inspect --format '{{index .Config.Labels "agent-container.session"}}' "$id" 2>/dev/null || true)
        printf '%s\n' "$session"
    done | sort -u
}

labelled() {
    case $1 in
        container) docker ps -aq --filter "label=$2" ;;
        *) docker "$1" ls -q --filter "label=$2" ;;
    esac
}

test_label() {
    case $1 in
        container) printf '%s' '{{index .Config.Labels "agent-container.test"}}' ;;
        *) printf '%s' '{{index .Labels "agent-container.test"}}' ;;
    esac
}

remove_object() {
    case $1 in
        container) docker rm -f -v "$2" ;;
        *) docker "$1" rm "$2" ;;
    esac >/dev/null 2>&1 || say "  note: a leftover $1 of an earlier test run could not be removed: $2"
}
