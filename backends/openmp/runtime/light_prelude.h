// The first include of every generated file whose loops run on CPUs and which calls no operator of
// ATen, so that it can be precompiled: it has nothing of torch.
#ifndef LOMA_LIGHT_PRELUDE_H
#define LOMA_LIGHT_PRELUDE_H

#include "loops.h"
#include "light_tensors.h"

namespace loma {

using namespace light;

}  // namespace loma

#endif  // LOMA_LIGHT_PRELUDE_H
