/* Collective operations between the processes of one group.
 *
 * The plain C interface of libhopsml_collective.so. It knows no framework: buffers are plain memory of this process.
 * Who is in a group changes with its generation alone: by another group, or, of a resumable one, by hopsml_reform.
 *
 * Calls of one group are made in the same order by all of its members, one after the other; calls from several threads are
 * put in a row. Each call tells the others what it is (operation, type, number of elements, name): where they differ all
 * members get HOPSML_MISMATCH, with the rank and the names, and never a wrong sum. Every call ends: with its result, at the
 * group's deadline, or as soon as a member is lost, with that member's rank. The first that fails ends the group: all further
 * ones of all members fail with the same status, HOPSML_ARGUMENT and HOPSML_CHANGED excepted.
 *
 * In a resumable group a loss (HOPSML_PEER_LOST, HOPSML_DEADLINE) is no failure: calls wait, until hopsml_reform lets them go on
 * with other members, or hopsml_end ends them. Whoever was in a call then either has its result, on all members, or makes it
 * again, on all members; nobody notices but by the time, the size, and HOPSML_CHANGED.
 */
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
  HOPSML_PEER_LOST = 1, /* a member has ended or cannot be reached; hopsml_lost_rank says which */
  HOPSML_DEADLINE = 2,  /* a member took no part in time; hopsml_lost_rank says which is waited for */
  HOPSML_MISMATCH = 3,  /* members called different operations */
  HOPSML_REFUSED = 4,   /* somebody does not know the group's secret, is of another generation, does not encrypt, or has
                           changed what was encrypted */
  HOPSML_ARGUMENT = 5,  /* this call has no meaning */
  HOPSML_SYSTEM = 6,    /* the system refused memory, a socket or a thread */
  HOPSML_ENDED = 7,     /* this group was ended here: hopsml_end, or a fork */
  HOPSML_CHANGED = 8,   /* the group has other members than the caller reckons with; nothing was done, and `in` is as it was */
  HOPSML_UNAVAILABLE = 9 /* this machine has nothing to encrypt with */
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

/* Of what is sent between machines, where elements are HOPSML_FLOAT32; sums are made in float32 all the same, and what stays in
 * shared memory, or is small, is not rounded. HOPSML_WIRE_FLOAT16 is scaled in blocks: nothing finite overflows. */
typedef enum { HOPSML_WIRE_SAME = 0, HOPSML_WIRE_FLOAT16 = 1, HOPSML_WIRE_BFLOAT16 = 2 } hopsml_wire;

/* How all-reduces go over sockets. AUTO: by the size and the number of members. DIRECT: each member exchanges with each other
 * one. PAIRWISE: in pairs, in as many steps as the number has binary digits. RING: each with its neighbours in rank order. What
 * has 16 bits, or is sent in 16 bits, goes directly: it would be rounded in each step. */
typedef enum { HOPSML_AUTO = 0, HOPSML_DIRECT = 1, HOPSML_PAIRWISE = 2, HOPSML_RING = 3 } hopsml_algorithm;

typedef struct {
  uint32_t struct_size; /* sizeof(hopsml_options): fields are only ever added */
  int32_t rank;
  int32_t size;
  const char* const* addresses; /* "host:port" of every rank, in ring order; [::1]:port for IPv6 */
  const char* const* hosts;     /* a name of every rank's machine: equal ones try shared memory; NULL: sockets alone */
  int32_t listener;             /* a socket that listens on addresses[rank], taken over whatever comes of it; -1: one is made */
  uint64_t generation;          /* members of another one are refused */
  const uint8_t* secret;        /* that members prove to each other, before anything else is said; never sent */
  size_t secret_size;           /* at least 16 bytes */
  double form_timeout_s;        /* for all members to find each other */
  double timeout_s;             /* of an operation, from its call here; 0: none, losses are noticed all the same */
  int32_t resumable;            /* 1: a loss does not end the group: calls wait for hopsml_reform; the same on all members */
  double network_timeout_s;     /* without an answer of a member's machine, and it is lost; at least 1; 0: 15 */
  int32_t algorithm;            /* a hopsml_algorithm, the same for all members */
  int32_t guest;                /* 1: what this group calls counts for nobody: its first reform lets it in as a newcomer */
  int32_t encryption;           /* 1: what goes over sockets is encrypted and cannot be changed under way, or the group does not
                                   form; the same on all members. What stays in shared memory is as it is */
} hopsml_options;

/* Forms the group: returns when this member is connected with those that it needs. `error` gets a sentence (ends in 0). */
hopsml_status hopsml_form(const hopsml_options* options, hopsml_group** group, char* error, size_t error_size);

/* Those of the newest generation. Who wants several of them that belong together asks for the generation before and after. */
int32_t hopsml_rank(const hopsml_group* group);
int32_t hopsml_size(const hopsml_group* group);
uint64_t hopsml_generation(const hopsml_group* group);
int32_t hopsml_resumable(const hopsml_group* group);

/* Lets a resumable group go on with other members, from another thread than those that make calls.
 *
 * `options`: this member's new rank, the new members, a higher generation, its secret; `resumable` and `guest` are not looked at.
 * All members of the new generation call it, or, newcomers, hopsml_form; or hopsml_reform of a group that they formed as a guest,
 * by themselves, which keeps what a framework has built on it. A call under way is interrupted as if a member had been lost (also
 * where none was: one may be frozen). When the new generation stands its members tell each other where they are:
 *
 *  - the interrupted call is complete where every member that was in the old generation has its whole result; it returns
 *    HOPSML_OK on all of them. Else all of them make it again, with the new members; a mean is that of those.
 *  - what depends on who is a member (all_gather, reduce_scatter, broadcast) is not made again but returns HOPSML_CHANGED.
 *  - newcomers have no interrupted call. Their first call is the next one of the group, and that is the one that the others
 *    make again, where there is one: so let newcomers in where all have paused.
 *
 * Returns when this is settled. HOPSML_MISMATCH: a member cannot go on with the others, as these have made calls without it.
 * HOPSML_CHANGED: another thread has asked for a generation that is higher still, which ends this one. On any failure but HOPSML_ARGUMENT (which changes nothing) the group waits for another reform, or its end. */
hopsml_status hopsml_reform(hopsml_group* group, const hopsml_options* options, char* error, size_t error_size);
/* Whether operations wait for hopsml_reform, as a member was lost (hopsml_lost_rank and hopsml_problem say whom), or as one has
 * failed. A loss is noticed in calls: a member that makes none waits for nothing. */
int32_t hopsml_waiting(const hopsml_group* group);
/* The generation that has made the last call that is complete here, or the one that was formed, before any. Between two calls
 * that is the same on all members, while the newest generation may be news to some of them and not to others. */
uint64_t hopsml_made_in(const hopsml_group* group);

/* Asks all members of a resumable group to stop at the same place. Every call carries whether any member has asked before it
 * began there; from the return of the first one that does, hopsml_pause_agreed is 1, on all members. A reform clears both: who
 * acts on it looks again after a reform, for a member may have been lost amid that very call. */
void hopsml_ask_pause(hopsml_group* group);
int32_t hopsml_pause_agreed(const hopsml_group* group);

/* The operations. `in` and `out` may be the same memory. `name`: what it is to people, for messages and the comparison. What
 * HOPSML_ARGUMENT refuses was told to nobody, and harms nothing. `generation`, of those whose buffers or arguments depend on who
 * is a member: the one for which they were made, hopsml_generation asked for before hopsml_size and hopsml_rank; when it is
 * another one by now, also since a loss amid the call, that is HOPSML_CHANGED, and the caller makes the call anew, with buffers
 * for the members of now. (`root` counts among those, too: the process that it meant before may be gone, or have another rank.)
 *
 * all_reduce      out[count] = the reduction of all members' in[count]; equal to the last bit on all of them. The order of the
 *                 sum depends on the way that it goes, so on the size and the number of members. Sums of integers wrap around,
 *                 and their mean is the sum divided, toward zero; the least of anything and NaN is NaN; 16-bit floats are summed
 *                 as float32
 * all_gather      out[size * count] = the members' in[count], in rank order
 * broadcast       out[count] = in[count] of `root`
 * reduce_scatter  out[count] = this rank's part of the reduction of all members' in[size * count]
 * barrier         returns when all have called it
 */
hopsml_status hopsml_all_reduce(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                                hopsml_reduction reduction, hopsml_wire wire, const char* name);
hopsml_status hopsml_all_gather(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                                uint64_t generation, const char* name);
hopsml_status hopsml_broadcast(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                               int32_t root, uint64_t generation, const char* name);
hopsml_status hopsml_reduce_scatter(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                                    hopsml_reduction reduction, uint64_t generation, const char* name);
hopsml_status hopsml_barrier(hopsml_group* group, const char* name);

/* Why operations of this group fail, or wait; "" while they do not. Valid until this thread asks again. */
const char* hopsml_problem(const hopsml_group* group);
/* The rank that was lost or is waited for; -1 for none. */
int32_t hopsml_lost_rank(const hopsml_group* group);

/* Ends the group here, from any thread: operations under way return HOPSML_ENDED, the other members HOPSML_PEER_LOST. */
void hopsml_end(hopsml_group* group, const char* why);
/* Gives back what hopsml_form or hopsml_current returned; the last one closes sockets and memory. */
void hopsml_release(hopsml_group* group);

/* The group that operations of a framework use, one a process: they are built once and outlive groups.
 * set_current keeps a reference of its own (NULL: none any more); current returns one to release, or NULL. */
void hopsml_set_current(hopsml_group* group);
hopsml_group* hopsml_current(void);

#ifdef __cplusplus
}
#endif
#endif
