"""Makes the demo's certificate authority and one server certificate, valid for a day, in a directory.

    certificates.py DIRECTORY NAME...

Writes ca.pem (all that the demo's sidecar believes) and server.pem (certificate and key).
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = timedelta(days=1)


def builder(subject: str, issuer: str, key: ec.EllipticCurvePublicKey, now: datetime) -> x509.CertificateBuilder:
    """The fields that both certificates share."""
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + LIFE)
    )


def usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Key usage of an authority or of a server; OpenSSL in strict mode wants it said."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def main(directory: Path, names: list[str], now: datetime) -> None:
    """Writes both files; the authority's key is never written."""
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = "agent-container demo CA"
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    ca = (
        builder(issuer, issuer, authority.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority, hashes.SHA256())
    )
    leaf = (
        builder(names[0], issuer, server.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (directory / "ca.pem").write_bytes(ca.public_bytes(pem))
    secret = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "server.pem").write_bytes(leaf.public_bytes(pem) + secret)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:], datetime.now(UTC))
