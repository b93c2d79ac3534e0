// The kernel's struct sigaction, whose header excludes the C library's.
#include <stddef.h>
#include <asm/signal.h>

__attribute__((visibility("default"))) const unsigned long layout_sigaction[] = {
    sizeof(struct sigaction), offsetof(struct sigaction, sa_handler),
    offsetof(struct sigaction, sa_flags), offsetof(struct sigaction, sa_restorer),
    offsetof(struct sigaction, sa_mask), SA_ONSTACK, sizeof(sigset_t)};
