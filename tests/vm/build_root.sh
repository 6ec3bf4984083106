#!/bin/bash
# Debian bookworm with its kernel, NFS and SMB servers and clients: $W/root.dir
set -e
mirror=$(grep -rhE "^(URIs:|deb )" /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | grep -oE "https?://[^ ]+/debian/?( |$)" | head -1 | tr -d " ")  # the one this machine uses
cd "$W"
nice -n 19 mmdebstrap --variant=minbase --mode=root \
 --include=systemd,systemd-sysv,udev,dbus,kmod,linux-image-amd64,nfs-kernel-server,nfs-common,rpcbind,samba,cifs-utils,keyutils,smbclient,iproute2,nftables,procps,python3-minimal,util-linux,strace,socat,busybox-static,less,iputils-ping,tcpdump,libnss-systemd \
 --aptopt='Apt::Install-Recommends "false"' \
 --customize-hook='rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/usr/share/doc "$1"/usr/share/locale' \
 bookworm root.dir "$mirror"
