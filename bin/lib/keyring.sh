# A Secret Service for the tests that lock the credential store with a real keyring: gnome-keyring on a private D-Bus.
# Sourced by bin/test after common.sh. Installs when root on a Debian-like system; says what to type otherwise.

keyring_up() {
    if have gnome-keyring-daemon && have dbus-run-session; then return 0; fi
    [ "$(uname -s)" = Linux ] || return 0
    if have apt-get && is_root; then
        apt_install gnome-keyring dbus || die "gnome-keyring could not be installed"
        return 0
    fi
    case $(os_release ID) in
        debian | ubuntu) die "the tests need gnome-keyring and dbus" "sudo apt-get install gnome-keyring dbus" ;;
        *) die "the tests need gnome-keyring-daemon and dbus-run-session" "install gnome-keyring and dbus" ;;
    esac
}
