//! Safe AWS Elastic Fabric Adapter (SRD) verbs over rdma-core.
