# What the verifier in another language needs: Perl with its core modules (Debian's `perl`; `perl-base` has them not), openssl 3.
# Sourced by bin/test.

independent_ready() {
    perl -MDigest::SHA -MFile::Temp -MJSON::PP -MMIME::Base64 -e 1 2>/dev/null || return 1
    case $(openssl pkeyutl -help 2>&1) in *-rawin*) ;; *) return 1 ;; esac
}

independent_up() {
    independent_ready && return 0
    if have apt-get && is_root; then
        apt_install perl openssl || die "perl and openssl could not be installed"
    fi
    independent_ready || die "Perl with its core modules and openssl 3 are needed" "sudo apt-get install perl openssl"
}
