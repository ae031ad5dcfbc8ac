/* Collective operations between the processes of one group.
 *
 * The plain C interface of libhopsml_collective.so. It knows no framework: buffers are plain memory of this process.
 * Whoever changes who is in a group forms another one, of a higher generation; a group's members never change.
 *
 * Calls of one group are made in the same order by all of its members, one after the other; calls from several threads are
 * put in a row. Each call tells the others what it is (operation, type, number of elements, name): where they differ all
 * members get HOPSML_MISMATCH, with the rank and the names, and never a wrong sum. Every call ends: with its result, at the
 * group's deadline, or as soon as a member is lost, with that member's rank. The first that fails ends the group: all further
 * ones of all members fail with the same status, HOPSML_ARGUMENT excepted.
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
  HOPSML_REFUSED = 4,   /* somebody does not know the group's secret, or is of another generation */
  HOPSML_ARGUMENT = 5,  /* this call has no meaning */
  HOPSML_SYSTEM = 6,    /* the system refused memory, a socket or a thread */
  HOPSML_ENDED = 7      /* this group was ended here: hopsml_end, or a fork */
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
} hopsml_options;

/* Forms the group: returns when this member is connected with those that it needs. `error` gets a sentence (ends in 0). */
hopsml_status hopsml_form(const hopsml_options* options, hopsml_group** group, char* error, size_t error_size);

int32_t hopsml_rank(const hopsml_group* group);
int32_t hopsml_size(const hopsml_group* group);
uint64_t hopsml_generation(const hopsml_group* group);

/* The operations. `in` and `out` may be the same memory. `name`: what it is to people, for messages and the comparison. What
 * HOPSML_ARGUMENT refuses was told to nobody, and harms nothing.
 *
 * all_reduce      out[count] = the reduction of all members' in[count]; equal to the last bit on all of them. Sums of integers
 *                 wrap around, and their mean is the sum divided, toward zero; the least of anything and NaN is NaN; 16-bit
 *                 floats are summed as float32
 * all_gather      out[size * count] = the members' in[count], in rank order
 * broadcast       out[count] = in[count] of `root`
 * reduce_scatter  out[count] = this rank's part of the reduction of all members' in[size * count]
 * barrier         returns when all have called it
 */
hopsml_status hopsml_all_reduce(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                                hopsml_reduction reduction, hopsml_wire wire, const char* name);
hopsml_status hopsml_all_gather(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                                const char* name);
hopsml_status hopsml_broadcast(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                               int32_t root, const char* name);
hopsml_status hopsml_reduce_scatter(hopsml_group* group, const void* in, void* out, uint64_t count, hopsml_type type,
                                    hopsml_reduction reduction, const char* name);
hopsml_status hopsml_barrier(hopsml_group* group, const char* name);

/* Why operations of this group fail, a sentence; "" while they do not. Valid until the group is released. */
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
