// One pass over whole lists of parameters: updates, samples, and sums.
//
// A list is cut into fixed stretches, the tasks; sums of stretches are added in order, in double.

struct Stretch {
  size_t entry;
  int64_t begin, end;
};

template <class List>
std::vector<Stretch> stretches(const List& list) {
  constexpr int64_t kStretch = 1 << 15;
  std::vector<Stretch> found;
  for (size_t entry = 0; entry < list.size(); ++entry)
    for (int64_t begin = 0; begin < list[entry].size; begin += kStretch)
      found.push_back({entry, begin, std::min(list[entry].size, begin + kStretch)});
  return found;
}

// Sum over all elements of term(entry, index), each stretch in vector-wide lanes.
template <class T, class List, class Term>
double sum_list(const Context& context, const List& list, Term term) {
  const auto parts = stretches(list);
  std::vector<double> sums(parts.size());
  context.parallel_for(parts.size(), [&](int64_t task) {
    const Stretch& part = parts[task];
    constexpr int64_t kLanes = 16, kRun = 1024;
    double total = 0;
    for (int64_t begin = part.begin; begin < part.end; begin += kRun) {
      const int64_t end = std::min(part.end, begin + kRun);
      T lanes[kLanes] = {};
      int64_t i = begin;
      for (; i + kLanes <= end; i += kLanes)
        for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(part.entry, i + lane);
      for (; i < end; ++i) lanes[0] += term(part.entry, i);
      for (T lane : lanes) total += lane;
    }
    sums[task] = total;
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

template <class T>
void write_sum(T* out, Update update, double value) {
  *out = T((update.decay == 0 ? 0.0 : update.decay * *out) + update.scale * value);
}

template <class T>
void gaussian_kl(const Context& context, T* out, Update update, std::span<const Flat<const T>> mean,
                 std::span<const Flat<const T>> log_sigma, double prior_sigma) {
  const T precision = 1 / (prior_sigma * prior_sigma);
  const T offset = 2 * std::log(prior_sigma) - 1;
  const double sum = sum_list<T>(context, mean, [&](size_t entry, int64_t i) {
    const T mu = mean[entry].data[i], ls = log_sigma[entry].data[i];
    return (fast_exp(2 * ls) + mu * mu) * precision - 2 * ls + offset;
  });
  write_sum(out, update, 0.5 * sum);
}

template <class T>
void squared_gradient_sum(const Context& context, T* out, Update update,
                          std::span<const Flat<const T>> gradient,
                          std::span<const Flat<const T>> log_sigma) {
  const double sum = sum_list<T>(context, gradient, [&](size_t entry, int64_t i) {
    const T g = gradient[entry].data[i];
    return fast_exp(2 * log_sigma[entry].data[i]) * g * g;
  });
  write_sum(out, update, sum);
}

template <class T>
void precision_update(const Context& context, std::span<const Flat<T>> precision,
                      std::span<const Flat<const T>> diagonal, double decay, double scale) {
  const auto parts = stretches(precision);
  context.parallel_for(parts.size(), [&](int64_t task) {
    const Stretch& part = parts[task];
    T* h = precision[part.entry].data;
    const T* d = diagonal[part.entry].data;
    write_row<T>(h + part.begin, 1, {decay, scale}, d + part.begin, {}, nullptr, 0,
                 part.end - part.begin);
  });
}

template <class T>
void sample_from_precision(const Context& context, std::span<const Flat<T>> noise,
                           std::span<const Flat<const T>> mean,
                           std::span<const Flat<const T>> precision, double prior, double scale) {
  const auto parts = stretches(noise);
  context.parallel_for(parts.size(), [&](int64_t task) {
    const Stretch& part = parts[task];
    T* e = noise[part.entry].data;
    const T *mu = mean[part.entry].data, *h = precision[part.entry].data;
    const T extra = prior, factor = scale;
    for (int64_t i = part.begin; i < part.end; ++i)
      e[i] = mu[i] + factor * e[i] / std::sqrt(h[i] + extra);
  });
}
