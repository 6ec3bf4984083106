#!/usr/bin/env bash
# Do Microsoft's own clients accept the stand-in broker? Installs azure-servicebus (PyPI) and
# @azure/service-bus (npm) into clients/.installed, runs check.py and check.mjs plain and over TLS,
# and prints a table. Never part of CI: it needs the registries. Run it after a change of the broker.
#
#   tests/service-bus/clients/run.sh             all four
#   tests/service-bus/clients/run.sh python tls  one of them
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
installed=$here/.installed

missing=()
for tool in cargo openssl python3 node npm; do
    command -v "$tool" >/dev/null || missing+=("$tool")
done
if command -v python3 >/dev/null && ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
    missing+=("python3's venv")
fi
if [ ${#missing[@]} -gt 0 ]; then
    echo "run.sh: NOTHING WAS CHECKED, these are missing here: ${missing[*]}" >&2
    exit 69
fi

mkdir -p "$installed"
if [ ! -x "$installed/venv/bin/python" ]; then
    python3 -m venv "$installed/venv"
fi
"$installed/venv/bin/pip" install --quiet --disable-pip-version-check azure-servicebus
if [ ! -d "$installed/node_modules/@azure/service-bus" ]; then
    npm install --prefix "$installed" --silent --no-audit --no-fund @azure/service-bus
fi

# An authority of one day, a certificate for localhost, and an authority that signed nothing here.
certs=$installed/certs
mkdir -p "$certs"
authority() {
    openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj "/CN=$1" \
        -addext "keyUsage=critical,keyCertSign" \
        -keyout "$certs/$1.key" -out "$certs/$1.pem" 2>/dev/null
}
authority known
authority other
openssl req -newkey rsa:2048 -nodes -subj /CN=localhost \
    -keyout "$certs/server.key" -out "$certs/server.csr" 2>/dev/null
openssl x509 -req -in "$certs/server.csr" -CA "$certs/known.pem" -CAkey "$certs/known.key" \
    -CAcreateserial -days 1 -out "$certs/server.pem" 2>/dev/null \
    -extfile <(printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\n')

cargo build --quiet --manifest-path "$here/../Cargo.toml" --features tls
target=$(cargo metadata --format-version 1 --no-deps --manifest-path "$here/../Cargo.toml" |
    "$installed/venv/bin/python" -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')
# A copy: another build may take the place of this one while the checks run.
cp -f "$target/debug/service-bus-stand-in" "$installed/"
broker=$installed/service-bus-stand-in
tls=("$certs/server.pem" "$certs/server.key" "$certs/known.pem" "$certs/other.pem")

failed=0
table=""
run() {
    local client=$1 mode=$2 out=$installed/$1-$2.out
    shift 2
    echo "==> $client, $mode"
    "$@" 2>"$out.err" | tee "$out" || true
    local passed wrong version
    version=$(sed -n 's/^version //p' "$out")
    passed=$(grep -c '^ok ' "$out" || true)
    wrong=$(grep -c '^FAILED ' "$out" || true)
    if [ "$wrong" -gt 0 ] || ! grep -q '^done$' "$out"; then
        failed=1
        tail -n 5 "$out.err" >&2
        grep -q '^done$' "$out" || wrong="$wrong, and it did not come to the end"
    fi
    table+=$(printf '%-36s %-6s %6s %6s' "$version" "$mode" "$passed" "$wrong")$'\n'
}

python() { timeout 300 "$installed/venv/bin/python" "$here/check.py" "$@"; }
javascript() {
    timeout 300 env INSTALLED="$installed/" NODE_EXTRA_CA_CERTS="$extra_ca" \
        node "$here/check.mjs" "$@"
}
for client in ${1:-python javascript}; do
    for mode in ${2:-plain tls}; do
        files=()
        extra_ca=""
        if [ "$mode" = tls ]; then
            files=("${tls[@]}")
            extra_ca=$certs/known.pem
        fi
        run "$client" "$mode" "$client" "$mode" "$broker" "${files[@]}"
    done
done

echo
printf '%-36s %-6s %6s %6s\n' client mode passed failed
printf '%s' "$table"
exit "$failed"
