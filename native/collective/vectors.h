/* HOPSML_VECTORS: compiles a function for each instruction set; the loader selects the best one of the machine, as a
 * wheel runs on different machines. The sanitizers cannot do that. HOPSML_INLINE: for functions that it calls. */
#ifndef HOPSML_COLLECTIVE_VECTORS_H
#define HOPSML_COLLECTIVE_VECTORS_H

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define HOPSML_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HOPSML_VECTORS
#endif
#define HOPSML_INLINE inline __attribute__((always_inline))

#endif
