#!/bin/bash
# root.dir -> root.img, vmlinuz, initrd.gz (virtio and ext4 only)
set -e
here=$(cd "$(dirname "$0")" && pwd); cd "$W"; R=root.dir; K=$(ls $R/lib/modules)
mkdir -p $R/opt/tc $R/mnt/nfs $R/mnt/smb $R/srv/share; cp "$here/guest/agent.py" $R/opt/tc/agent.py
[ -x $R/usr/bin/python3 ] || { cp /etc/resolv.conf $R/etc/; chroot $R apt-get install -y --no-install-recommends python3; }
cat > $R/etc/systemd/system/tc-agent.service <<'E'
[Unit]
Description=test agent
DefaultDependencies=no
After=systemd-udevd.service systemd-tmpfiles-setup.service dbus.socket
[Service]
ExecStart=/usr/bin/python3 /opt/tc/agent.py
Restart=always
KillMode=process
OOMScoreAdjust=-900
[Install]
WantedBy=multi-user.target
E
chroot $R systemctl enable tc-agent.service
chroot $R systemctl disable nfs-server.service smbd.service nmbd.service samba-ad-dc.service rpcbind.service rpcbind.socket || true
chroot $R systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer systemd-timesyncd.service getty@tty1.service systemd-networkd-wait-online.service nmbd.service winbind.service
rm -f $R/etc/resolv.conf; touch $R/etc/resolv.conf; : > $R/etc/fstab; chroot $R passwd -d root
mkdir -p $R/etc/systemd/journald.conf.d; printf '[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\n' > $R/etc/systemd/journald.conf.d/tc.conf
printf 'virtio_console\nvirtio_net\n' > $R/etc/modules-load.d/tc.conf
rm -rf ird; mkdir -p ird/{bin,proc,sys,dev,newroot,mods}; cp $R/bin/busybox ird/bin/busybox
for m in virtio_pci virtio_blk ext4 virtio_console; do chroot $R modprobe -S $K --show-depends $m | awk '/insmod/{print $2}'; done | awk '!s[$0]++' > ird.list
i=0; while read -r m; do i=$((i+1)); cp $R/$m ird/mods/$(printf %02d $i)-$(basename $m); done < ird.list
cat > ird/init <<'E'
#!/bin/busybox sh
/bin/busybox mount -t proc p /proc; /bin/busybox mount -t sysfs s /sys; /bin/busybox mount -t devtmpfs d /dev
for m in /mods/*.ko; do /bin/busybox insmod $m; done
i=0; while [ ! -b /dev/vda ] && [ $i -lt 200 ]; do /bin/busybox usleep 50000; i=$((i+1)); done
/bin/busybox mount -t ext4 -o rw,noatime /dev/vda /newroot
/bin/busybox mount --move /dev /newroot/dev; /bin/busybox umount /sys; /bin/busybox umount /proc
exec /bin/busybox switch_root /newroot /lib/systemd/systemd
E
chmod +x ird/init; (cd ird && find . | /bin/busybox cpio -o -H newc 2>/dev/null | gzip -1 > ../initrd.gz)
cp $R/boot/vmlinuz-$K vmlinuz; rm -f root.img; truncate -s 2G root.img; nice -n 19 mkfs.ext4 -q -F -d $R root.img
