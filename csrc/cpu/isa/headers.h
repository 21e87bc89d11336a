// Standard headers of the kernels, included before any instruction set is turned on: their inline
// functions must run on every machine.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "cache.h"
#include "../kernels.h"
