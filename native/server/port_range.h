/* A range of ports for a library that lets the kernel choose the port it listens on.
 *
 * gloo and NCCL have no setting for it. From the call on, sockets of the libraries that are bound to port 0 of an address other
 * than loopback get a free port of the range; where there is none, bind fails with EADDRINUSE. Sockets that are bound to a port,
 * or not bound at all, are not touched. How it is done, and what it leaves alone: guard.h.
 */
#ifndef HOPSML_SERVER_PORT_RANGE_H
#define HOPSML_SERVER_PORT_RANGE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `libraries`: what the paths of those begin with, which are loaded already. The number of libraries whose ports are kept to
 * `first` to `last`, both included; 0: none of them binds, or this kind of machine is not supported; -1: no such range. Further
 * calls replace the range for all of them. */
__attribute__((visibility("default"))) int32_t hopsml_bind_within(const char* libraries, int32_t first, int32_t last);

#ifdef __cplusplus
}
#endif

#endif
