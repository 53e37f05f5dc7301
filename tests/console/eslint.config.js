/** Rules of the console's modules; run by `test_javascript.py`. */

module.exports = [
  {
    files: ['static/**/*.js'],
    ignores: ['static/vendor/**'],
    languageOptions: { ecmaVersion: 2023, sourceType: 'module', globals: { ...require('globals').browser } },
    linterOptions: { reportUnusedDisableDirectives: 'error' },
    rules: {
      ...require('@eslint/js').configs.recommended.rules,
      eqeqeq: 'error',
      'no-eval': 'error',
      'no-implied-eval': 'error',
      'no-new-func': 'error',
      'no-var': 'error',
      'prefer-const': 'error',
      complexity: ['error', 20],
      'no-loss-of-precision': 'off', // the bounds of JSON schemas
      'no-restricted-properties': [
        'error',
        { property: 'innerHTML', message: 'Render elements.' },
        { property: 'outerHTML', message: 'Render elements.' },
        { property: 'insertAdjacentHTML', message: 'Render elements.' },
      ],
      'no-restricted-syntax': ['error', { selector: "Identifier[name='dangerouslySetInnerHTML']", message: 'Render elements.' }],
      // The arguments of a tagged template are not followed by the rule for unused names.
      'no-unused-vars': ['error', { args: 'after-used', varsIgnorePattern: '^[A-Z]', argsIgnorePattern: '^_' }],
    },
  },
];
