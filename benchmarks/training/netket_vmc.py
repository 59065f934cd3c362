"""NetKet finds the ground state of an Ising chain, by variational Monte Carlo on all processes.

    pip install netket==3.23.0
    jax-passing run --hosts 2 benchmarks/training/netket_vmc.py            # its collectives go over gloo
    jax-passing run --hosts 2 --for-jax benchmarks/training/netket_vmc.py  # or through the switch

A step samples spins, sums energies and gradients over all processes, and solves for the natural gradient: about 600
small collectives, which NetKet leaves to jit. The energy is the same over both.
"""

import time

import jax

SPINS, SAMPLES, WARM_UPS, STEPS = 12, 768, 5, 100


def main() -> None:
    jax.distributed.initialize()
    import netket as nk  # it asks JAX for its devices, so after initialize

    space = nk.hilbert.Spin(s=1 / 2, N=SPINS)
    hamiltonian = nk.operator.IsingJax(space, graph=nk.graph.Chain(SPINS), h=1.0)
    state = nk.vqs.MCState(
        nk.sampler.MetropolisLocal(space, n_chains=48),
        nk.models.RBM(alpha=1, param_dtype=float),
        n_samples=SAMPLES,
        seed=1,
        sampler_seed=2,
    )
    driver = nk.VMC(
        hamiltonian,
        nk.optimizer.Sgd(learning_rate=0.05),
        variational_state=state,
        preconditioner=nk.optimizer.SR(diag_shift=0.01),
    )
    driver.run(WARM_UPS, out=nk.logging.RuntimeLog(), show_progress=False)
    start_s = time.perf_counter()
    driver.run(STEPS, out=nk.logging.RuntimeLog(), show_progress=False)
    step_ms = 1000 * (time.perf_counter() - start_s) / STEPS
    print(f"process {jax.process_index()}: energy {state.expect(hamiltonian)}, {step_ms:.0f} ms a step")


if __name__ == "__main__":
    main()
