// What developers' tools talk to, as one server: git over https, an npm registry, a Python package index, HTTP/2 and gRPC.
// Arguments: key file, certificate file, directory of bare repositories. Node's own modules only.
"use strict";
const http = require("http");
const http2 = require("http2");
const fs = require("fs");
const crypto = require("crypto");
const zlib = require("zlib");
const { spawn } = require("child_process");
const [key, cert, repositories] = process.argv.slice(2);

function tarball() {
  const body = Buffer.from(JSON.stringify({ name: "tiny", version: "1.0.0", main: "index.js" }));
  const header = Buffer.alloc(512);
  header.write("package/package.json", 0);
  header.write("0000644\0", 100);
  header.write("0000000\0", 108);
  header.write("0000000\0", 116);
  header.write(body.length.toString(8).padStart(11, "0") + "\0", 124);
  header.write("00000000000\0", 136);
  header.write("        ", 148);
  header.write("0", 156);
  header.write("ustar\x0000", 257);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(sum.toString(8).padStart(6, "0") + "\0 ", 148);
  const padded = Buffer.concat([body, Buffer.alloc((512 - (body.length % 512)) % 512)]);
  return zlib.gzipSync(Buffer.concat([header, padded, Buffer.alloc(1024)]));
}

function crc32(data) {
  let value = ~0;
  for (const byte of data) {
    value ^= byte;
    for (let bit = 0; bit < 8; bit += 1) value = (value >>> 1) ^ (value & 1 ? 0xedb88320 : 0);
  }
  return ~value >>> 0;
}

function zip(files) {
  const locals = [];
  const central = [];
  let offset = 0;
  for (const [name, text] of files) {
    const data = Buffer.from(text);
    const head = Buffer.alloc(30);
    head.writeUInt32LE(0x04034b50, 0);
    head.writeUInt16LE(20, 4);
    head.writeUInt16LE(0x21, 12);
    head.writeUInt32LE(crc32(data), 14);
    head.writeUInt32LE(data.length, 18);
    head.writeUInt32LE(data.length, 22);
    head.writeUInt16LE(name.length, 26);
    const row = Buffer.alloc(46);
    row.writeUInt32LE(0x02014b50, 0);
    row.writeUInt16LE(20, 4);
    head.copy(row, 6, 4, 30);
    row.writeUInt32LE(offset, 42);
    locals.push(head, Buffer.from(name), data);
    central.push(row, Buffer.from(name));
    offset += 30 + name.length + data.length;
  }
  const listed = Buffer.concat(central);
  const end = Buffer.alloc(22);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt16LE(files.length, 8);
  end.writeUInt16LE(files.length, 10);
  end.writeUInt32LE(listed.length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...locals, listed, end]);
}

const info = "tiny-1.0.dist-info";
const wheel = zip([
  ["tiny.py", "WORD = 'installed'\n"],
  [`${info}/METADATA`, "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"],
  [`${info}/WHEEL`, "Wheel-Version: 1.0\nGenerator: double\nRoot-Is-Purelib: true\nTag: py3-none-any\n"],
  [`${info}/RECORD`, `tiny.py,,\n${info}/METADATA,,\n${info}/WHEEL,,\n${info}/RECORD,,\n`],
]);
const packed = tarball();

function git(request, response, url) {
  const backend = spawn("git", ["http-backend"], {
    env: {
      PATH: process.env.PATH,
      GIT_PROJECT_ROOT: repositories,
      GIT_HTTP_EXPORT_ALL: "1",
      REMOTE_USER: "somebody",
      PATH_INFO: url.pathname.slice("/git".length),
      QUERY_STRING: url.search.slice(1),
      REQUEST_METHOD: request.method,
      CONTENT_TYPE: request.headers["content-type"] || "",
      HTTP_CONTENT_ENCODING: request.headers["content-encoding"] || "",
      GIT_PROTOCOL: request.headers["git-protocol"] || "",
    },
  });
  request.pipe(backend.stdin);
  const parts = [];
  backend.stdout.on("data", (part) => parts.push(part));
  backend.on("close", () => {
    const all = Buffer.concat(parts);
    const end = all.indexOf("\r\n\r\n");
    let status = 200;
    for (const line of all.subarray(0, end).toString().split("\r\n")) {
      const [name, ...rest] = line.split(": ");
      if (name === "Status") status = parseInt(rest.join(": "), 10);
      else response.setHeader(name, rest.join(": "));
    }
    response.writeHead(status);
    response.end(all.subarray(end + 4));
  });
}

function grpc(request, response) {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    response.writeHead(200, { "content-type": "application/grpc" });
    response.addTrailers({ "grpc-status": "0" });
    response.end(Buffer.concat(parts));
  });
}

function answer(request, response) {
  if ((request.headers["content-type"] || "").startsWith("application/grpc")) return grpc(request, response);
  const host = request.headers[":authority"] || request.headers.host;
  const url = new URL(request.url, `https://${host}`);
  if (url.pathname.startsWith("/git/")) return git(request, response, url);
  if (url.pathname === "/npm/tiny") {
    const dist = {
      tarball: `https://${host}/npm/tiny/-/tiny-1.0.0.tgz`,
      integrity: "sha512-" + crypto.createHash("sha512").update(packed).digest("base64"),
    };
    response.setHeader("content-type", "application/json");
    return response.end(
      JSON.stringify({ name: "tiny", "dist-tags": { latest: "1.0.0" }, versions: { "1.0.0": { name: "tiny", version: "1.0.0", dist } } }),
    );
  }
  if (url.pathname === "/npm/tiny/-/tiny-1.0.0.tgz") return response.end(packed);
  if (url.pathname === "/simple/tiny/") {
    response.setHeader("content-type", "text/html");
    return response.end('<a href="/files/tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>');
  }
  if (url.pathname === "/files/tiny-1.0-py3-none-any.whl") return response.end(wheel);
  response.end(JSON.stringify({ version: request.httpVersion, path: url.pathname }));
}

const server = http2.createSecureServer({ key: fs.readFileSync(key), cert: fs.readFileSync(cert), allowHTTP1: true }, answer);
server.listen(443, "::");
http.createServer(answer).listen(80, "::");
