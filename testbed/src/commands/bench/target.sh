# The kernel's NVMe/RDMA target over a disk in memory: $1 is the subsystem's name, $2 the address.
for module in nvmet nvmet-rdma nvme-rdma; do
    modprobe $module
done
modprobe brd rd_nr=1 rd_size=131072
target=/sys/kernel/config/nvmet
mkdir -p $target/subsystems/$1/namespaces/1 $target/ports/1
echo 1 > $target/subsystems/$1/attr_allow_any_host
echo /dev/ram0 > $target/subsystems/$1/namespaces/1/device_path
echo 1 > $target/subsystems/$1/namespaces/1/enable
echo rdma > $target/ports/1/addr_trtype
echo ipv4 > $target/ports/1/addr_adrfam
echo $2 > $target/ports/1/addr_traddr
echo 4420 > $target/ports/1/addr_trsvcid
ln -s $target/subsystems/$1 $target/ports/1/subsystems/$1
