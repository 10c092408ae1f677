"""The certificate authority of a cluster, in its own folder, and the certificates it signs."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=365)
CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class KeyPair:
    """Paths of a PEM certificate and its PEM key."""

    certificate: Path
    key: Path


class Authority:
    """The authority of one cluster; `folder` holds ca.crt, ca.key and everything issued."""

    def __init__(self, folder: Path, cluster: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(f"bivouac-rehearsal-{cluster}", ())
        certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_ca_usage(), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.files = self._write("ca", certificate, self._key)
        self.pem = self.files.certificate.read_text()
        self.bundle = base64.b64encode(self.pem.encode()).decode()
        """The certificate in base64 of PEM, as Kubernetes objects and kubeconfig files hold it."""

    def server(self, file: str, names: Sequence[str]) -> KeyPair:
        """Issue a serving certificate for DNS names and IP addresses."""
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        return self._issue(file, _subject(names[0], ()), ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def client(self, file: str, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """Issue a client certificate: Kubernetes reads the user from CN and the groups from O."""
        return self._issue(file, _subject(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(
        self, file: str, subject: x509.Name, usage: x509.ObjectIdentifier, names: x509.SubjectAlternativeName | None
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key.public_key()).add_extension(x509.ExtendedKeyUsage([usage]), False)
        if names:
            builder = builder.add_extension(names, critical=False)
        return self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def _write(self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
        pair = KeyPair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_private(pair.key, key)
        return pair


def write_signing_key(path: Path) -> Path:
    """Write the key that signs service account tokens: RSA, because EKS signs them with RS256."""
    _write_private(path, rsa.generate_private_key(public_exponent=65537, key_size=2048))
    return path


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
    )


def _subject(common_name: str, organisations: Sequence[str]) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organisations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
