"""Runs a command under a lease on a blob, as people write it round Microsoft's SDK.

usage: az_lease.py CONTAINER/NAME COMMAND [ARGUMENT...]

The figures measure it beside trafficcop. It has the SDK's defaults, a lease of 15 s renewed every
10 s, and looks every 5 s while another has it. Its faults are those of such scripts, and left in.
"""
import os
import signal
import subprocess
import sys
import time

from azure.core.exceptions import AzureError, ResourceExistsError
from azure.storage.blob import BlobServiceClient

LEASE, RENEW, RETRY = 15, 10, 5


def blob(name):
    container, name = name.split("/", 1)
    account = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
    # Azurite knows no newer version of the service.
    service = BlobServiceClient.from_connection_string(account, api_version="2024-11-04")
    container = service.get_container_client(container)
    try:
        container.create_container()
    except ResourceExistsError:
        pass
    blob = container.get_blob_client(name)
    try:
        blob.upload_blob(b"", overwrite=False)
    except AzureError:
        pass  # it is there, and perhaps leased
    return blob


def acquire(blob):
    while True:
        try:
            return blob.acquire_lease(LEASE)
        except AzureError:
            print("waiting", file=sys.stderr, flush=True)
            time.sleep(RETRY)


def main():
    lease = acquire(blob(sys.argv[1]))
    child = subprocess.Popen(sys.argv[2:])
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while True:
        try:
            status = child.wait(timeout=RENEW)
            break
        except subprocess.TimeoutExpired:
            pass
        try:
            lease.renew()
        except AzureError:
            child.terminate()
            child.wait()
            return 70
    lease.release()
    return status


sys.exit(main())
