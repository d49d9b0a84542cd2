// What the library shows to Python: plain C functions, named kaminari_*, that never throw.
#pragma once
#define KAMINARI extern "C" __attribute__((visibility("default")))
