// Churn on a whole cluster, compiled: what benchmarks/churn.py plays with the product's own code, some fifty times faster.
//
// The rules are copies of those in webhook/placement/fragmentation, operation by operation, so that with ties broken in
// a fixed order both give the same numbers; benchmarks/compiled.py holds one against the other.
// Thousandths of a GPU, millicores and MiB throughout; time in mean lifetimes.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <queue>
#include <vector>

namespace {

constexpr int MOST_GPUS = 16;
constexpr double NOWHERE = -INFINITY;
enum Policy { TAB, FGD, MOST_ALLOCATED, STOCK_DEFAULT };

}  // namespace

struct World {
    int64_t policy, nodes, gpus, shapes, needs, fixed, cores, levels, step, sizes, limits;
    const int64_t *cpu, *memory, *free, *model;                             // by node; free by node and GPU
    const int64_t *shape_cpu, *shape_count, *shape_milli, *shape_models;    // by shape; models as a mask
    const int64_t *need_shape, *need_memory;                                // by need
    const int64_t *table;                                                   // TAB: fill table, by node
    const double *fill, *idle, *price;                                      // by table; by table and idle GPUs; by node
    double claim, emptying, relief, grain, half_life;
    const int64_t *size, *limit;                                            // FGD: sizes and CPU limits, both rising
    const double *runs;                                                     // by model, size, GPUs with room, CPU limit
};

namespace {

struct Random {
    uint64_t state;
    int64_t below(int64_t n) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return int64_t((state >> 11) % uint64_t(n));
    }
};

struct Place {
    int64_t node = -1, gpus[MOST_GPUS];
};

struct Row {  // scores of one shape, good up to a point of the log
    std::vector<double> scores;
    std::vector<uint32_t> version;
    size_t seen = 0;
};

class Board {
  public:
    double all_free = 0, came = 0, left = 0;
    std::vector<int64_t> cpu, memory, free;

    Board(const World &world, uint64_t seed)
        : cpu(world.cpu, world.cpu + world.nodes), memory(world.memory, world.memory + world.nodes),
          free(world.free, world.free + world.nodes * world.gpus), w(world), rng{seed * 0x9E3779B97F4A7C15ull + 1},
          rows(world.shapes), version(world.nodes, 1), values(world.nodes), node_free(world.nodes),
          whole(world.nodes), found(world.nodes) {
        for (int i = 0; i < 10; i++) rng.below(2);
        for (int64_t n = 0; n < w.nodes; n++) {
            for (int64_t g = 0; g < w.gpus; g++) node_free[n] += w.free[n * w.gpus + g];
            whole[n] = std::max(node_free[n], 1.0);
            all_free += node_free[n];
            values[n] = value(n, cpu[n], &free[n * w.gpus]);
        }
    }

    Place choose(int64_t need) {
        const int64_t shape = w.need_shape[need], memory_asked = w.need_memory[need];
        const std::vector<double> &scores = row(shape);
        beside(shape, memory_asked, scores);
        double best = NOWHERE;
        for (int64_t n = 0; n < w.nodes; n++) {
            found[n] = memory[n] >= memory_asked ? found[n] : NOWHERE;
            best = std::max(best, found[n]);
        }
        Place place;
        if (best == NOWHERE) return place;
        int64_t alike = 0;
        for (int64_t n = 0; n < w.nodes; n++)
            if (found[n] == best && (++alike == 1 || (!w.fixed && rng.below(alike) == 0))) place.node = n;
        score(place.node, shape, place.gpus);
        return place;
    }

    void change(const Place &place, int64_t need, int sign) {
        const int64_t shape = w.need_shape[need], n = place.node, milli = w.shape_count[shape] * w.shape_milli[shape];
        cpu[n] += sign * w.shape_cpu[shape];
        memory[n] += sign * w.need_memory[need];
        for (int64_t i = 0; i < w.shape_count[shape]; i++) free[n * w.gpus + place.gpus[i]] += sign * w.shape_milli[shape];
        node_free[n] += sign * milli;
        all_free += sign * milli;
        values[n] = value(n, cpu[n], &free[n * w.gpus]);
        version[n]++;
        log.push_back(int32_t(n));
    }

    bool fits(int64_t need, int64_t n) const {
        const int64_t shape = w.need_shape[need];
        if (w.shape_cpu[shape] > cpu[n] || w.need_memory[need] > memory[n]) return false;
        return !w.shape_count[shape] || (takes(shape, n) && with_room(shape, n) >= w.shape_count[shape]);
    }

  private:
    const World &w;
    Random rng;
    std::vector<Row> rows;
    std::vector<uint32_t> version;
    std::vector<int32_t> log;
    std::vector<double> values, node_free, whole, found;

    bool takes(int64_t shape, int64_t n) const { return w.shape_models[shape] >> w.model[n] & 1; }

    int64_t with_room(int64_t shape, int64_t n) const {
        int64_t count = 0;
        for (int64_t g = 0; g < w.gpus; g++) count += free[n * w.gpus + g] >= w.shape_milli[shape];
        return count;
    }

    const std::vector<double> &row(int64_t shape) {
        Row &row = rows[shape];
        if (row.scores.empty()) {
            row.scores.resize(w.nodes);
            row.version = version;
            for (int64_t n = 0; n < w.nodes; n++) row.scores[n] = score(n, shape, nullptr);
        } else {
            for (size_t i = row.seen; i < log.size(); i++) {
                const int64_t n = log[i];
                if (row.version[n] == version[n]) continue;
                row.scores[n] = score(n, shape, nullptr);
                row.version[n] = version[n];
            }
        }
        row.seen = log.size();
        return row.scores;
    }

    void beside(int64_t shape, int64_t memory_asked, const std::vector<double> &scores) {
        const double milli = double(w.shape_count[shape] * w.shape_milli[shape]), asked = double(w.shape_cpu[shape]);
        const double turnover = came > 0 ? std::min(1.0, left / came) : 0.0;
        found = scores;
        if (w.policy == TAB && milli > 0 && turnover > 0) {
            for (int64_t n = 0; n < w.nodes; n++) {
                const double used = 1 - (node_free[n] - milli) / whole[n];
                found[n] += grained(turnover * (w.emptying * used + w.relief * w.price[n] * (milli / 1000)));
            }
        }
        if (w.policy != STOCK_DEFAULT) return;
        for (int64_t n = 0; n < w.nodes; n++) {
            const double c = 1 - (double(cpu[n]) - asked) / double(std::max<int64_t>(w.cpu[n], 1));
            const double m = 1 - double(memory[n] - memory_asked) / double(std::max<int64_t>(w.memory[n], 1));
            const double least = std::floor((std::floor(100 * (1 - c)) + std::floor(100 * (1 - m))) / 2);
            found[n] += least + std::floor(100 * (1 - std::fabs(c - m) / 2));
        }
    }

    double grained(double score) const { return std::rint(w.grain * score) / w.grain; }

    // The score of the best way to put a pod on a node; into `chosen` the GPUs of that way.
    double score(int64_t n, int64_t shape, int64_t *chosen) const {
        const int64_t *now = &free[n * w.gpus], left_cpu = cpu[n] - w.shape_cpu[shape];
        const int64_t count = w.shape_count[shape], milli = w.shape_milli[shape];
        if (left_cpu < 0) return NOWHERE;
        if (!count) return scored(n, value(n, left_cpu, now), 0);
        if (!takes(shape, n) || with_room(shape, n) < count) return NOWHERE;
        int64_t after[MOST_GPUS];
        std::copy(now, now + w.gpus, after);
        if (count == 1 && milli < 1000) return share(n, left_cpu, milli, after, chosen);
        for (int64_t i = 0; i < count; i++) {  // whole ones: the lowest idle; shares: the fullest that fit
            int64_t best = -1;
            for (int64_t g = 0; g < w.gpus; g++)
                if (after[g] == now[g] && now[g] >= milli && (best < 0 || (milli < 1000 && now[g] < now[best]))) best = g;
            after[best] -= milli;
            if (chosen) chosen[i] = best;
        }
        return scored(n, value(n, left_cpu, after), count * milli);
    }

    double share(int64_t n, int64_t left_cpu, int64_t milli, int64_t *after, int64_t *chosen) const {
        const int64_t *now = &free[n * w.gpus];
        const bool tight = w.policy >= MOST_ALLOCATED;
        double best = NOWHERE;
        int64_t gpu = -1;
        for (int64_t g = 0; g < w.gpus; g++) {
            if (now[g] < milli || std::find(now, now + g, now[g]) != now + g) continue;
            after[g] -= milli;
            const double one = scored(n, value(n, left_cpu, after), milli);
            after[g] += milli;
            if (one > best || (one == best && tight && now[g] < now[gpu])) best = one, gpu = g;
        }
        if (chosen) chosen[0] = gpu;
        return best;
    }

    double scored(int64_t n, double becomes, int64_t milli) const {
        if (w.policy == TAB) return grained(becomes - values[n] - w.price[n] * (milli / 1000.0));
        if (w.policy == FGD) return std::floor(100 / (1 + std::exp((values[n] - becomes) / 1000)));
        return w.policy == MOST_ALLOCATED ? becomes : 0;
    }

    double value(int64_t n, int64_t free_cpu, const int64_t *gpus) const {
        if (w.policy == TAB) return expected_fill(n, free_cpu, gpus);
        if (w.policy == FGD) return -fragments(n, free_cpu, gpus);
        if (w.policy == STOCK_DEFAULT) return 0;
        double sum = 0;
        for (int64_t g = 0; g < w.gpus; g++) sum += double(gpus[g]);
        return std::floor(100 * (whole[n] - sum) / whole[n]);
    }

    double expected_fill(int64_t n, int64_t free_cpu, const int64_t *gpus) const {
        int64_t sum = 0, idle = 0;
        for (int64_t g = 0; g < w.gpus; g++) sum += gpus[g], idle += gpus[g] == 1000;
        const double most = std::min(free_cpu / 1000.0, double(w.cores));
        const double each = w.claim * double(free_cpu) / double(1000 * std::max<int64_t>(sum, 1));
        double worth = 0;
        for (int64_t g = 0; g < w.gpus; g++)
            if (gpus[g] > 0 && gpus[g] < 1000) worth += look_up(w.table[n], std::min(double(gpus[g]) * each, most), gpus[g]);
        const double *line = w.idle + (w.table[n] * (w.gpus + 1) + idle) * 2;
        return worth + line[0] * look_up(w.table[n], std::min(1000 * each, most), 1000) + line[1];
    }

    double look_up(int64_t table, double cores, int64_t milli) const {
        const int64_t low = int64_t(cores);
        const double *at = w.fill + (table * (w.cores + 2) + low) * w.levels + milli / w.step;
        return at[0] + (cores - double(low)) * (at[w.levels] - at[0]);
    }

    double fragments(int64_t n, int64_t free_cpu, const int64_t *gpus) const {
        int64_t sorted[MOST_GPUS], usable = 0, g = 0;
        std::copy(gpus, gpus + w.gpus, sorted);
        std::sort(sorted, sorted + w.gpus);
        for (int64_t i = 0; i < w.gpus; i++) usable += sorted[i];
        const int64_t met = std::upper_bound(w.limit, w.limit + w.limits, free_cpu) - w.limit;
        double lost = double(usable);
        for (int64_t z = 0; z < w.sizes && g < w.gpus; z++) {
            while (g < w.gpus && sorted[g] < w.size[z]) usable -= sorted[g++];
            const int64_t at = (w.model[n] * w.sizes + z) * (w.gpus + 1) + w.gpus - g;
            lost -= double(usable) * w.runs[at * (w.limits + 1) + met];
        }
        return lost;
    }
};

struct End {
    double when;
    int64_t pod;
    bool operator<(const End &other) const { return when > other.when; }
};

}  // namespace

// Plays pods in the order of their arrival. Into `started` the moment each began, -1 where it never did. Into `idle`
// the GPUs that stand idle while a pod waits, in thousandths, times the time from `warm` on. 1 where more than `enough` wait.
extern "C" int64_t churn(const World *world, uint64_t seed, int64_t pods, const double *arrives, const double *lifetime,
                         const int64_t *need, double warm, int64_t enough, double *started, double *idle) {
    Board board(*world, seed);
    std::vector<Place> places(pods);
    std::priority_queue<End> ends;
    std::map<int64_t, std::deque<int64_t>> waiting;  // by need, the longest waiting first
    int64_t queued = 0;
    double now = 0;
    const double kept = std::pow(2.0, -1 / world->half_life);
    const auto pass = [&](double until) {
        if (queued) *idle += std::max(0.0, until - std::max(now, warm)) * board.all_free;
        now = until;
    };
    const auto start = [&](int64_t pod) {
        places[pod] = board.choose(need[pod]);
        if (places[pod].node < 0) return false;
        board.change(places[pod], need[pod], -1);
        started[pod] = now;
        ends.push({now + lifetime[pod], pod});
        return true;
    };
    const auto longest = [&](int64_t node) {
        auto best = waiting.end();
        for (auto each = waiting.begin(); each != waiting.end(); ++each)
            if (board.fits(each->first, node) && (best == waiting.end() || each->second.front() < best->second.front())) best = each;
        return best;
    };
    const auto end = [&] {
        const End first = ends.top();
        ends.pop();
        pass(first.when);
        const Place place = places[first.pod];
        board.change(place, need[first.pod], 1);
        board.left++;
        for (auto next = longest(place.node); next != waiting.end(); next = longest(place.node)) {
            const int64_t pod = next->second.front();
            next->second.pop_front();
            if (next->second.empty()) waiting.erase(next);
            queued--;
            start(pod);
        }
    };
    for (int64_t pod = 0; pod < pods; pod++) {
        started[pod] = -1;
        while (!ends.empty() && ends.top().when <= arrives[pod]) end();
        pass(arrives[pod]);
        if (!start(pod)) {
            queued++;
            waiting[need[pod]].push_back(pod);
            if (queued > enough) return 1;
        }
        board.came = kept * board.came + 1;
        board.left *= kept;
    }
    return 0;
}
