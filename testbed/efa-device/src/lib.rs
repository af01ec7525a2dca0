//! An EFA PCIe function in software.
