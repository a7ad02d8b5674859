#include "tests/sim/engine.h"
SIM_API void sim_reset(const SimConfig*c){(void)c;sim_errors_clear();}
SIM_API void sim_fail(const char*a,int b,int c,bool d){(void)a;(void)b;(void)c;(void)d;}
SIM_API void sim_stats(SimStats*s){*s=sim_counts;}
SIM_API uint64_t sim_calls(const char*e){(void)e;return 0;}
SIM_API const char*sim_leaks(void){return "";}
