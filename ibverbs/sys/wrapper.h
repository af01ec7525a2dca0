/* The headers that rdma4rs-sys binds, nothing else. */
#include <infiniband/verbs.h>
#include <infiniband/efadv.h>
#include <rdma/rdma_cma.h>
