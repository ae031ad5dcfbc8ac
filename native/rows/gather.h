/* Gathers rows of many arrays into one array for each column.
 *
 * The plain C interface of libhopsml_rows.so. It depends on no framework: arrays are plain memory of this process,
 * whose first axis counts rows. Nothing is checked: the caller ensures that all rows exist. */
#ifndef HOPSML_ROWS_GATHER_H
#define HOPSML_ROWS_GATHER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The rows in their order: row `rows[i]` of shard `shards[i]`. */
typedef struct {
  const uint32_t* shards;
  const int64_t* rows;
} hopsml_places;

/* The shards' arrays of each column: that of column c and shard s is `arrays[c * shards + s]`, with rows of `sizes[c]`
 * bytes. */
typedef struct {
  uint64_t columns;
  uint64_t shards;
  const uint64_t* sizes;
  const uint8_t* const* arrays;
} hopsml_columns;

/* Copies rows `begin` to `end` of the places to `out[c]` of each column, the first of them to its beginning. */
void hopsml_gather_rows(const hopsml_columns* from, const hopsml_places* places, uint64_t begin, uint64_t end,
                        uint8_t* const* out);

#ifdef __cplusplus
}
#endif

#endif
