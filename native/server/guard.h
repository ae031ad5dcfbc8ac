/* Guard for the port of a server in this process that accepts every connection.
 *
 * The plain C interface of libhopsml_server.so. TensorFlow's server listens on every interface and serves every peer;
 * it has no setting for either. From this call on the port is bound to one address and only members are admitted: peers
 * that prove the group's secret with the first bytes of a connection; or, without a secret, peers from this machine
 * with this process' user, or from a member's address.
 *
 * It is between the server's library and the C library: entries of that library's own table of functions are replaced
 * (see calls.cc). Calls by other libraries, Python and other programs are not affected; nothing is in the environment,
 * and nothing is inherited by programs that this process executes. Forks of this process inherit all of it. */
#ifndef HOPSML_SERVER_GUARD_H
#define HOPSML_SERVER_GUARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `libraries`: prefix of the paths of the server's libraries, which are loaded already. `members`: "address:port" or
 * "[address]:port" of all of them, with numbers, no names; `own`: the index of this process'. `secret`: given to all
 * members, or NULL and 0.
 *
 * Returns the number of libraries that call through the guard; 0: no library listens, or this kind of machine is not
 * supported; -1: an address is invalid. Further calls replace the members. */
__attribute__((visibility("default"))) int32_t hopsml_guard_server(const char* libraries, const char* const* members,
                                                                   int32_t count, int32_t own, const uint8_t* secret,
                                                                   size_t secret_size);

#ifdef __cplusplus
}
#endif

#endif
