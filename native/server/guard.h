/* A guard for the port of a server that this process will start and that asks nobody who connects.
 *
 * The plain C interface of libhopsml_server.so. TensorFlow's server listens on every interface and obeys everybody; it has no
 * setting for either. From this call on the port is bound to one address and members alone are let in: who proves the group's
 * secret with the first bytes of a connection; or, without a secret, who comes from this machine as this process' user, or
 * from a member's address.
 *
 * It stands between the server's library and the C library: entries of that library's own table of functions are replaced
 * (calls.cc has them). What other libraries, Python and other programs call is not touched; nothing is in the environment, and
 * nothing is inherited by what this process executes. Forks of this process inherit all of it.
 */
#ifndef HOPSML_SERVER_GUARD_H
#define HOPSML_SERVER_GUARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `libraries`: what the paths of those begin with that the server is in, which are loaded already.
 * `members`: "address:port" or "[address]:port" of all of them, with numbers, no names; `own`: the index of this process'.
 * `secret`: what all members are given, or NULL and 0.
 *
 * The number of libraries that call through the guard; 0: none of them listens, or this kind of machine is not supported; -1:
 * an address is none. Further calls replace the members. */
__attribute__((visibility("default"))) int32_t hopsml_guard_server(const char* libraries, const char* const* members,
                                                                   int32_t count, int32_t own, const uint8_t* secret,
                                                                   size_t secret_size);

#ifdef __cplusplus
}
#endif

#endif
