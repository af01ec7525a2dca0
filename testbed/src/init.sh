#!/bin/sh
# The first program of the guest: mounts what the host shares and hands over to the agent.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
die() {
    echo "testbed: init: $*"
    poweroff -f
}
while read -r module; do
    insmod "/modules/$module" || die "cannot load $module"
done < /modules/order

share() { # TAG FOLDER
    mkdir -p "$2"
    mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 "$1" "$2" ||
        die "cannot mount $1 at $2"
}
# The root is shared by every guest and stays as it is; what a guest writes goes to memory.
share root /lower
mount -t tmpfs -o mode=755 upper /upper
mkdir /upper/data /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /new ||
    die "cannot mount the root"

mount -o move /dev /new/dev
mount -o move /proc /new/proc
mount -o move /sys /new/sys
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 pts /new/dev/pts
mount -t tmpfs -o mode=1777 shm /new/dev/shm
mount -t tmpfs -o mode=1777 tmp /new/tmp
mount -t tmpfs -o mode=755 run /new/run

share run /new/run/testbed
while read -r tag folder; do
    share "$tag" "/new$folder"
done < /new/run/testbed/shares

ulimit -l unlimited
ulimit -n 65536
chroot /new /run/testbed/testbed guest
echo "testbed: init: the agent ended with $?"
poweroff -f
