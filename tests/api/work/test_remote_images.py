"""Images by their addresses: what is fetched, and what is not."""

import asyncio
import contextlib
import datetime
import ssl

import pytest

from service.api.work.remote_images import RemoteImages, is_public
from service.errors import BodyBytesFull, InvalidParameter

HOST = "images.example.com"
CONTENT = bytes(range(256)) * 40
FIELD = "messages[0].content[0].image_url"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return the file of a certificate for the host, and of its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("certificate")
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    no_password = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)
    (folder / "key.pem").write_bytes(private)
    return folder


def answer(status="200 OK", body=CONTENT, **headers):
    lines = {"Content-Length": str(len(body))} | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def fetched(
    certificate,
    response,
    url=f"https://{HOST}/a.png?b=c",
    addresses=("127.0.0.1",),
    hold_s=0.0,
    arrived=lambda num_bytes: None,
    **options,
):
    """Return what is fetched from a server that answers with these bytes, and what it was asked."""
    asked = []

    async def run():
        async def serve(reader, writer):
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(response)
                await writer.drain()
                await asyncio.sleep(hold_s)
                writer.close()

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate / "certificate.pem", certificate / "key.pem")
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)

        async def resolve(host):
            asked.append(host)
            return addresses

        settings = {"timeout_s": 5.0, "max_bytes": 20_000, "is_allowed": lambda address: address == "127.0.0.1"}
        port = server.sockets[0].getsockname()[1]
        images = RemoteImages(
            **settings | options, resolve=resolve, port=port, trusted=str(certificate / "certificate.pem")
        )
        async with server:
            return await images.fetch(url, FIELD, arrived)

    return asyncio.run(run()), asked


def refused(*arguments, **options):
    with pytest.raises(InvalidParameter) as error:
        fetched(*arguments, **options)
    assert error.value.param == FIELD
    assert HOST not in str(error.value)
    return str(error.value)


def test_an_image_is_fetched_without_credentials(certificate):
    content, (host, request) = fetched(certificate, answer())
    assert (content, host) == (CONTENT, HOST)
    assert request.startswith(b"GET /a.png?b=c HTTP/1.1\r\n")
    names = {line.partition(b":")[0].lower() for line in request.splitlines()[1:] if line}
    assert names == {b"host", b"accept", b"accept-encoding", b"connection"}


def test_an_image_in_chunks_is_joined(certificate):
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (CONTENT[:100], CONTENT[100:])) + b"0\r\n\r\n"
    content, _ = fetched(certificate, answer(body=chunks, Content_Length=None, Transfer_Encoding="chunked"))
    assert content == CONTENT


@pytest.mark.parametrize(
    "url",
    [
        "http://images.example.com/",
        "https://user@images.example.com/",
        "https://images.example.com:8443/",
        "https://images.example.com\\@localhost/",
        "https://images.example.com/a\\b",
        "https://images.example.com/a b",
        "https://images.example.com/\r\nHost: a",
        "https://localhost/",
        "https://127.0.0.1/",
        "https://0x7f.1/",
        "https://2130706433/",
        "https://[::ffff:169.254.169.254]/",
        "https://metadata/",
        "https://ímages.example.com/",
        "https:images.example.com/",
        "https:///etc/passwd",
        f"https://images.example.com/{'a' * 3000}",
        "ftp://images.example.com/",
    ],
)
def test_other_addresses_are_not_looked_up(certificate, url):
    with pytest.raises(InvalidParameter, match="not of the form"):
        asyncio.run(RemoteImages(timeout_s=1, max_bytes=1, resolve=None).fetch(url, FIELD))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "::ffff:8.8.8.8",
        "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::",
        "2001:0:a9fe::1",
        "ff02::1",
        "fec0::1",
        "::a9fe:a9fe",
        "5f00::1",
        "3fff::1",
        "2001:db8::1",
        "2001:20::1",
        "4000::1",
        "192.88.99.1",
        "192.52.193.1",
    ],
)
def test_addresses_that_are_not_public_are_told_apart(address):
    assert not is_public(address)
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")


def test_one_address_that_is_not_public_is_enough_to_refuse(certificate):
    assert "not public" in refused(certificate, answer(), addresses=("127.0.0.1", "10.0.0.1"))
    assert "not public" in refused(certificate, answer(), addresses=())


def test_a_name_is_looked_up_once_and_the_address_that_was_checked_is_connected_to(certificate):
    content, asked = fetched(certificate, answer())
    assert (content, asked.count(HOST)) == (CONTENT, 1)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (answer("302 Found", Location="https://localhost/"), "HTTP 302, a redirect"),
        (answer("404 Not Found"), "HTTP 404"),
        (answer(Content_Encoding="gzip"), "compressed"),
        (answer(body=bytes(30_000)), "more than 20,000 bytes"),
        (answer(body=bytes(30_000), Content_Length=None), "more than 20,000 bytes"),
        (answer(Content_Length=str(10**12)), "more than 20,000 bytes"),
        (answer(Content_Length="20000"), "could not be fetched"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "could not be fetched"),
        (b"", "could not be fetched"),
    ],
)
def test_other_answers_are_refused(certificate, response, reason):
    assert reason in refused(certificate, response)


def test_a_server_that_drips_is_left_in_time(certificate):
    assert "took longer than 0.3 seconds" in refused(certificate, answer()[:-1], hold_s=30, timeout_s=0.3)


def test_a_certificate_of_another_host_is_not_accepted(certificate):
    with pytest.raises(InvalidParameter, match="could not be fetched"):
        fetched(certificate, answer(), url="https://other.example.com/")


def test_the_bytes_of_an_image_count_while_they_arrive(certificate):
    counted = []

    def arrived(num_bytes):
        counted.append(num_bytes)
        if num_bytes > 8_000:
            raise BodyBytesFull(running=1, limit=1, retry_after_s=1)

    with pytest.raises(BodyBytesFull):
        fetched(certificate, answer(body=b"x" * 300_000), arrived=arrived, max_bytes=10**6)
    assert counted == sorted(counted)
    assert counted[-1] < 300_000
    content, _ = fetched(certificate, answer(), arrived=counted.append)
    assert counted[-1] == len(content)
