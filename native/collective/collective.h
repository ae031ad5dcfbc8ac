/* Collective operations between the processes of one group.
 *
 * The plain C interface of libhopsml_collective.so. It depends on no framework: buffers are plain memory of this
 * process. The members of a group change only with its generation: by forming another group, or, for a resumable one,
 * by hopsml_reform.
 *
 * All members of a group make the same calls in the same order, one after the other; calls from several threads are
 * serialized. Each call sends its description to the others (operation, type, number of elements, name): if they
 * differ, all members get HOPSML_MISMATCH, with the rank and the names, and never a wrong sum. Every call ends: with
 * its result, at the group's deadline, or as soon as a member is lost, with that member's rank. The first failure ends
 * the group: all further calls of all members fail with the same status, except for HOPSML_ARGUMENT and HOPSML_CHANGED.
 *
 * In a resumable group a loss (HOPSML_PEER_LOST, HOPSML_DEADLINE) is no failure: calls wait until hopsml_reform lets
 * them continue with other members, or hopsml_end ends them. An interrupted call then either has its result, on all
 * members, or is repeated on all members; callers notice only the time, the size, and HOPSML_CHANGED. */
#ifndef HOPSML_COLLECTIVE_H
#define HOPSML_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hopsml_group hopsml_group;

typedef enum {
  HOPSML_OK = 0,
  HOPSML_PEER_LOST = 1, /* a member has ended or is unreachable; hopsml_lost_rank returns its rank */
  HOPSML_DEADLINE = 2,  /* a member took no part in time; hopsml_lost_rank returns the rank that is waited for */
  HOPSML_MISMATCH = 3,  /* members called different operations */
  /* a peer does not know the group's secret, is of another generation, does not encrypt, or has changed encrypted data
   */
  HOPSML_REFUSED = 4,
  HOPSML_ARGUMENT = 5,  /* the arguments of this call are invalid */
  HOPSML_SYSTEM = 6,    /* the system refused memory, a socket or a thread */
  HOPSML_ENDED = 7,     /* this group was ended in this process: hopsml_end, or a fork */
  /* the group has other members than the caller assumed; nothing was done, and `in` is unchanged */
  HOPSML_CHANGED = 8,
  HOPSML_UNAVAILABLE = 9 /* this machine has no library for encryption */
} hopsml_status;

typedef enum {
  HOPSML_FLOAT32 = 0,
  HOPSML_FLOAT64 = 1,
  HOPSML_FLOAT16 = 2,
  HOPSML_BFLOAT16 = 3,
  HOPSML_INT32 = 4,
  HOPSML_INT64 = 5,
  HOPSML_UINT8 = 6
} hopsml_type;

typedef enum { HOPSML_SUM = 0, HOPSML_MEAN = 1, HOPSML_MIN = 2, HOPSML_MAX = 3 } hopsml_reduction;

/* Format of HOPSML_FLOAT32 elements between machines; sums are made in float32 all the same, and data that stays in
 * shared memory, or is small, is not rounded. HOPSML_WIRE_FLOAT16 is scaled in blocks: no finite value overflows. */
typedef enum { HOPSML_WIRE_SAME = 0, HOPSML_WIRE_FLOAT16 = 1, HOPSML_WIRE_BFLOAT16 = 2 } hopsml_wire;

/* Algorithms of all-reduces over sockets. AUTO: chosen by the size and the number of members. DIRECT: each member
 * exchanges with each other one. PAIRWISE: in pairs, in as many steps as the number has binary digits. RING: each with
 * its neighbours in rank order. Elements of 16 bits, or sent in 16 bits, always use DIRECT: they would be rounded in
 * each step. */
typedef enum { HOPSML_AUTO = 0, HOPSML_DIRECT = 1, HOPSML_PAIRWISE = 2, HOPSML_RING = 3 } hopsml_algorithm;

typedef struct {
  uint32_t struct_size; /* sizeof(hopsml_options): fields are only ever added */
  int32_t rank;
  int32_t size;
  const char* const* addresses; /* "host:port" of every rank, in ring order; [::1]:port for IPv6 */
  /* a name for every rank's machine: ranks with equal names try shared memory; NULL: sockets only */
  const char* const* hosts;
  /* a socket that listens on addresses[rank], owned by the library in any case; -1: the library makes one */
  int32_t listener;
  uint64_t generation;          /* members of another generation are refused */
  const uint8_t* secret;        /* members prove it to each other before anything else is read; it is never sent */
  size_t secret_size;           /* at least 16 bytes */
  double form_timeout_s;        /* time limit for connecting all members */
  /* time limit of an operation, from its call on this member; 0: none, but losses are noticed all the same */
  double timeout_s;
  /* 1: a loss does not end the group, and calls wait for hopsml_reform; the same on all members */
  int32_t resumable;
  /* a member counts as lost if its machine sends no response for this time; at least 1; 0: 15 */
  double network_timeout_s;
  int32_t algorithm;            /* a hopsml_algorithm, the same for all members */
  /* 1: calls of this group are not counted, and its first reform admits it to another group as a newcomer */
  int32_t guest;
  /* 1: data over sockets is encrypted and authenticated, or the group does not form; the same on all members. Shared
   * memory is not encrypted */
  int32_t encryption;
} hopsml_options;

/* Forms the group: returns when this member is connected with those that it needs. On failure a sentence is written to
 * `error`. */
hopsml_status hopsml_form(const hopsml_options* options, hopsml_group** group, char* error, size_t error_size);

/* Properties of the newest generation. To get consistent values of several, compare the generation before and after. */
int32_t hopsml_rank(const hopsml_group* group);
int32_t hopsml_size(const hopsml_group* group);
uint64_t hopsml_generation(const hopsml_group* group);
int32_t hopsml_resumable(const hopsml_group* group);

/* Lets a resumable group continue with other members; called from a thread that makes no operations.
 *
 * `options`: this member's new rank, the new members, a higher generation, its secret; `resumable` and `guest` are
 * ignored. All members of the new generation call it; newcomers call hopsml_form, or hopsml_reform of a group that they
 * formed alone as a guest, which preserves what a framework has built on it. A call in progress is interrupted as if a
 * member had been lost (even if none was: one may be frozen). Once the new generation is formed, its members exchange
 * their positions:
 *
 * - the interrupted call is complete if every member of the old generation has its whole result; it returns HOPSML_OK
 *   on all of them. Otherwise all of them repeat it with the new members; a mean is over those.
 * - an operation that depends on the members (all_gather, reduce_scatter, broadcast) is not repeated but returns
 *   HOPSML_CHANGED.
 * - newcomers have no interrupted call. Their first call is the next one of the group, which is the one that the others
 *   repeat, if there is one: so admit newcomers when all have paused.
 *
 * Returns when this is settled. HOPSML_MISMATCH: a member cannot continue with the others, as these have made calls
 * without it. HOPSML_CHANGED: another thread has requested a still higher generation, which ends this one. After any
 * failure except HOPSML_ARGUMENT (which changes nothing) the group waits for another reform, or its end. */
hopsml_status hopsml_reform(hopsml_group* group, const hopsml_options* options, char* error, size_t error_size);
/* Returns whether operations wait for hopsml_reform, because a member was lost (see hopsml_lost_rank and
 * hopsml_problem) or a reform has failed. A loss is noticed in calls: a member that makes none does not wait. */
int32_t hopsml_waiting(const hopsml_group* group);
/* Returns the generation that made the last complete call of this member, or the one that was formed, before any call.
 * Between two calls this is the same on all members, while some may not know the newest generation yet. */
uint64_t hopsml_made_in(const hopsml_group* group);

/* Asks all members of a resumable group to pause at the same point. Every call carries whether any member has asked
 * before it began there; after the return of the first one that does, hopsml_pause_agreed is 1, on all members. A
 * reform clears both: a caller that acts on it checks again after a reform, as a member may have been lost during that
 * very call. */
void hopsml_ask_pause(hopsml_group* group);
int32_t hopsml_pause_agreed(const hopsml_group* group);

/* The operations. `in` and `out` may be the same memory. `name`: a readable name, for messages and the comparison. A
 * call that HOPSML_ARGUMENT refuses was not sent to the others, and does no harm. `generation`, of operations whose
 * buffers or arguments depend on the members: the one for which they were prepared, from hopsml_generation called
 * before hopsml_size and hopsml_rank. If it is outdated, also because of a loss during the call, the result is
 * HOPSML_CHANGED, and the caller prepares the buffers for the present members and calls again. (`root` is such an
 * argument, too: the process may have ended, or have another rank.)
 *
 * all_reduce      out[count] = the reduction of all members' in[count]; equal to the last bit on all of them. The order of the
 *                 sum depends on the algorithm, and so on the size and the number of members. Sums of integers wrap around,
 *                 and their mean is the sum divided, toward zero; minimum and maximum with NaN are NaN; 16-bit floats are summed
 *                 as float32
 * all_gather      out[size * count] = the members' in[count], in rank order
 * broadcast       out[count] = in[count] of `root`
 * reduce_scatter  out[count] = this rank's part of the reduction of all members' in[size * count]
 * barrier         returns when all have called it */
hopsml_status hopsml_all_reduce(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                                hopsml_reduction reduction, hopsml_wire wire, const char* name);
hopsml_status hopsml_all_gather(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                                uint64_t generation, const char* name);
hopsml_status hopsml_broadcast(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                               int32_t root, uint64_t generation, const char* name);
hopsml_status hopsml_reduce_scatter(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                                    hopsml_reduction reduction, uint64_t generation, const char* name);
hopsml_status hopsml_barrier(hopsml_group* group, const char* name);

/* Returns why operations of this group fail, or wait; "" if they do not. Valid until this thread calls it again. */
const char* hopsml_problem(const hopsml_group* group);
/* Returns the rank that was lost or is waited for; -1 for none. */
int32_t hopsml_lost_rank(const hopsml_group* group);

/* Ends the group on this member, from any thread: its operations return HOPSML_ENDED, those of others HOPSML_PEER_LOST.
 */
void hopsml_end(hopsml_group* group, const char* why);
/* Releases what hopsml_form or hopsml_current returned; the last release closes sockets and memory. */
void hopsml_release(hopsml_group* group);

/* The group that operations of a framework use, one per process: the operations are built once and outlive groups.
 * hopsml_set_current holds a separate reference (NULL: none); hopsml_current returns one to release, or NULL. */
void hopsml_set_current(hopsml_group* group);
hopsml_group* hopsml_current(void);

/* Counts the bytes that sockets of all groups of this process receive and send, from now on: two counters, which the
 * caller keeps until the process ends, may share with another process, and never writes. NULL: they are not counted.
 * Members on one machine that share memory move few bytes by sockets. */
void hopsml_count_into(uint64_t* counters);

#ifdef __cplusplus
}
#endif
#endif
