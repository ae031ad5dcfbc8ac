/* Range of ports for libraries that let the kernel choose the port on which they listen.
 *
 * gloo and NCCL have no setting for it. From the call on, sockets of the libraries that are bound to port 0 of an
 * address other than loopback get a free port of the range; if there is none, bind fails with EADDRINUSE. Sockets that
 * are bound to a given port, or not bound at all, are not affected. For the method and its limits see guard.h. */
#ifndef HOPSML_SERVER_PORT_RANGE_H
#define HOPSML_SERVER_PORT_RANGE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `libraries`: prefix of their paths, which are loaded already. Returns the number of libraries whose ports are
 * restricted to `first` to `last`, both included; 0: no library binds, or this kind of machine is not supported; -1:
 * invalid range. Further calls replace the range for all of them. */
__attribute__((visibility("default"))) int32_t hopsml_bind_within(const char* libraries, int32_t first, int32_t last);

#ifdef __cplusplus
}
#endif

#endif
